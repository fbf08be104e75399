"""The algorithm's mathematics: pure functions, no Ray and no vLLM."""
