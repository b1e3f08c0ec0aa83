"""Whether, when and on which channel people are told of an alert. What a message looks like is notify's."""
