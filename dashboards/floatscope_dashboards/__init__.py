"""Pages and figures of floatscope: HTML from view objects, figures as plain dicts, static files."""
