"""What a layout costs: pure functions, vectorised over layouts. They are the specification."""
