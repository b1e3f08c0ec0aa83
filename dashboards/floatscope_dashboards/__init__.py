"""Pages and figures of floatscope: HTML from plain view objects, Plotly figures as plain dicts, static files."""
