"""A fault of your own: `holdfast drill --fault-file examples/faults/sensor_off.py -- python train.py`."""

from holdfast.drills import Expected, Fault


class SensorOff(Fault):
    code = "sensor-off"
    description = "one column of one batch is NaN: the sensor was off"
    expected = Expected(findings=("non-finite-loss", "non-finite-input"), causes=("data-non-finite",), survivable=True)
    needs = ("float-inputs",)

    def batch(self, batch, context):
        def switch_off(inputs):
            inputs[:, 0] = float("nan")

        return context.change_inputs(batch, switch_off)
