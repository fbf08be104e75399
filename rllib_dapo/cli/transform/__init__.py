"""Answers of a data set turned into integers (Section 3.5 and Appendix A of the paper)."""
