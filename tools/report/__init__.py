"""Tables, figures and pages from the files in results/."""
