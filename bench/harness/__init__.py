"""What every benchmark stands on: the pipeline it runs, reports and plots."""
