"""The exponent ranges that docs/formats.md names for kernels that decode to bf16 or fp16."""
import unittest

import ml_dtypes
import numpy as np

BF16, F16 = ml_dtypes.bfloat16, np.float16
SMALLEST_NORMAL = {BF16: 2.0**-126, F16: 2.0**-14}


def finite_values(element):
    values = np.arange(16 if element is ml_dtypes.float4_e2m1fn else 256, dtype=np.uint8).view(element).astype(np.float64)
    return values[np.isfinite(values)]


def exact(values, target):
    with np.errstate(all="ignore"):
        return bool((values.astype(target).astype(np.float64) == values).all())


def normal(values, target):
    return bool((np.abs(values[values != 0]) >= SMALLEST_NORMAL[target]).all())


class ExactIn16Bit(unittest.TestCase):
    def exponents(self, element, target):
        values = finite_values(element)
        found = [e for e in range(-160, 140) if exact(values * 2.0**e, target)]
        self.assertEqual(found, list(range(found[0], found[-1] + 1)))
        return found[0], min(e for e in found if normal(values * 2.0**e, target)), found[-1]

    def test_power_of_two_scales(self):
        e4m3, e2m1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
        self.assertEqual(self.exponents(e4m3, BF16), (-124, -117, 119))
        self.assertEqual(self.exponents(e4m3, F16), (-15, -5, 7))
        self.assertEqual(self.exponents(e2m1, BF16), (-132, -125, 125))
        self.assertEqual(self.exponents(e2m1, F16), (-23, -13, 13))

    def test_nvfp4(self):
        products = np.outer(finite_values(ml_dtypes.float4_e2m1fn), finite_values(ml_dtypes.float8_e4m3fn)).ravel()
        for target in (BF16, F16):
            self.assertTrue(exact(products, target) and normal(products, target))

    def test_elements_alone(self):
        for values in (finite_values(ml_dtypes.float8_e4m3fn), finite_values(ml_dtypes.float8_e5m2), np.arange(-128.0, 128.0)):
            self.assertTrue(exact(values, BF16) and exact(values, F16))

    def test_e2m1_is_the_upper_byte_of_fp16(self):
        values = finite_values(ml_dtypes.float4_e2m1fn)
        self.assertTrue((values.astype(F16).view(np.uint16) & 0xFF == 0).all())
        self.assertFalse((values.astype(BF16).view(np.uint16) & 0xFF == 0).all())


if __name__ == "__main__":
    unittest.main()
