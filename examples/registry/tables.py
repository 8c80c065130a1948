"""Write the invented tables of three hospitals, and of a server that has none."""

import numpy as np
import pandas as pd

ROWS = {"north": 520, "south": 360, "west": 280, "invented": 60}
LEVEL = {"north": -1.2, "south": -0.8, "west": -1.6, "invented": -1.2}


def patients(draw, rows, level):
    """Return patients: complications are logistic, deaths have a constant hazard."""
    age, sex = draw.normal(65, 9, rows).round(), draw.choice(["female", "male"], rows)
    stage = draw.choice(["I", "II", "III"], rows, p=[0.4, 0.4, 0.2])
    risk = 0.04 * (age - 65) + 0.4 * (sex == "male") + 0.9 * (stage == "III")
    complication = draw.random(rows) < 1 / (1 + np.exp(-level - risk))
    death, end = draw.exponential(900 / np.exp(risk)), draw.uniform(200, 1500, rows)
    days, died = np.minimum(death, end).round().clip(1), (death <= end).astype(int)
    held = {"age": age, "sex": sex, "stage": stage, "days": days, "died": died}
    return pd.DataFrame(held | {"complication": np.where(complication, "yes", "no")})


if __name__ == "__main__":
    generator = np.random.default_rng(1)
    for name, count in ROWS.items():
        patients(generator, count, LEVEL[name]).to_csv(f"{name}.csv", index=False)
