"""Fills the view objects of `floatscope_dashboards` from the store: one module a page."""
