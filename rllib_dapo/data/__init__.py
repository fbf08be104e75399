"""Problems: loading, ordering and rendering them."""
