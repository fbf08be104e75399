"""Turns the answers of a data set into integers (Section 3.5 and Appendix A of the paper)."""
