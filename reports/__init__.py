"""The HTML report's template, style and script; installed as the package `hostgap.reports`."""
