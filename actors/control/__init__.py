"""The operations of the control plane, one file per subject."""
