#include "kernels/reference_c.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace {

TEST(ReferenceCTest, MeanOfTwoRanks) {
  const float a[] = {1, 2, 3};
  const float b[] = {3, 2, 1};
  const void* sources[] = {a, b};
  std::vector<float> mean(3);
  EXPECT_EQ(ballast_reference_mean(1, 2, sources, 3, mean.data()), 1);
  EXPECT_EQ(mean, std::vector<float>(3, 2.0f));
}

TEST(ReferenceCTest, NormOfSeveralCells) {
  std::vector<uint64_t> limbs(ballast_reference_limbs());
  std::vector<float> x(5000, 2.0f);
  EXPECT_EQ(ballast_reference_norm2(x.data(), 5000, limbs.data()), 1);
  ballast_reference_limbs_add(0.5, limbs.data());
  EXPECT_EQ(ballast_reference_limbs_value(limbs.data()), 20000.5);
  x[4999] = INFINITY;
  EXPECT_EQ(ballast_reference_norm2(x.data(), 5000, limbs.data()), 0);
}

TEST(ReferenceCTest, StepMovesTheWeight) {
  const double hyper[10] = {0.5, 0.9, 0.999, 1e-8};
  std::vector<uint8_t> scalars(ballast_reference_scalars_bytes());
  ASSERT_EQ(ballast_reference_scalars(1, hyper, 1, 1.0f, scalars.data()), 1);
  const float gradient = 1;
  float master = 2;
  float weight = 0;
  EXPECT_EQ(ballast_reference_step(1, scalars.data(), 1, &gradient, &master,
                                   nullptr, nullptr, 1, &weight),
            1);
  EXPECT_EQ(master, 1.5f);
  EXPECT_EQ(weight, 1.5f);
}

TEST(ReferenceCTest, CodecRoundTrip) {
  const uint64_t spec = 0x0001010001070401u;  // int4, 128, sym, nearest
  const std::vector<float> x = {7, -7, 3, 0, 1};
  std::vector<uint8_t> encoded(ballast_reference_encoded_bytes(spec, 5));
  std::vector<float> y(5);
  EXPECT_EQ(ballast_reference_encode(spec, 0, 0, 5, x.data(), encoded.data()),
            1);
  EXPECT_EQ(ballast_reference_decode(spec, 5, encoded.data(), y.data()), 1);
  EXPECT_EQ(y, x);
  EXPECT_EQ(ballast_reference_decode_add(spec, 5, encoded.data(), y.data()), 1);
  EXPECT_EQ(y[0], 14.0f);
}

TEST(ReferenceCTest, RefusesWhatIsNotOfTheWire) {
  float value = 1;
  uint8_t bytes[64] = {};
  const void* sources[] = {&value};
  const double hyper[10] = {};
  EXPECT_EQ(ballast_reference_mean(0, 1, sources, 1, &value), 0);
  EXPECT_EQ(ballast_reference_mean(1, 0, sources, 1, &value), 0);
  EXPECT_EQ(ballast_reference_scalars(6, hyper, 1, 1, bytes), 0);
  EXPECT_EQ(ballast_reference_scalars(1, hyper, 0, 1, bytes), 0);
  EXPECT_EQ(ballast_reference_cast(&value, 4, 1, bytes), 0);
  EXPECT_EQ(ballast_reference_widen(bytes, 1, -1, &value), 0);
  EXPECT_EQ(ballast_reference_encoded_bytes(0, 1), -1);
  EXPECT_EQ(ballast_reference_encode(0, 0, 0, 1, &value, bytes), 0);
  EXPECT_EQ(
      ballast_reference_encode(0x0001010001070401u, 0, 100, 1, &value, bytes),
      0);
}

}  // namespace
