"""What the HTML report shows, computed here; `hostgap.output.html` lays it out."""
