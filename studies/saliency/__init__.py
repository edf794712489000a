"""Where people look: training and measuring the saliency network that ships."""
