"""Colours of all plots: hues of the palette of Okabe and Ito, which is safe for the colour-blind."""

PROVEN, CLAIMED, ATTACK, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
