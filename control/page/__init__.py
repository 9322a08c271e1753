"""The pages under ``/ui``, built with NiceGUI."""
