"""SageMaker's and Vertex AI's routes: each request becomes one of the API, whose guards then hold for it."""
