"""The steps of every use of FedSim after linking: what the primary gets of its partners, fitting, and prediction."""
