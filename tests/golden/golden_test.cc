// The C++ kernels against the vectors of generate.py, which was written
// from kernels/FORMAT.md alone: bit for bit.
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/exact_sum.h"
#include "kernels/float_formats.h"
#include "kernels/host/host.h"
#include "kernels/reference/reference.h"
#include "kernels/stochastic.h"
#include "nlohmann/json.hpp"

namespace ballast::kernels {
namespace {

using Json = nlohmann::json;
using Bytes = std::vector<uint8_t>;

Json ReadGolden(const std::string& name) {
  std::ifstream file("tests/golden/" + name);
  EXPECT_TRUE(file.is_open()) << name;
  return Json::parse(file);
}

Bytes FromHex(const std::string& hex) {
  Bytes bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] =
        static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

template <typename T>
std::vector<T> Array(const Json& hex) {
  const Bytes bytes = FromHex(hex.get<std::string>());
  std::vector<T> array(bytes.size() / sizeof(T));
  if (!array.empty()) {
    std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
  }
  return array;
}

uint64_t Word(const Json& hex) {
  return std::stoull(hex.get<std::string>(), nullptr, 16);
}

double Double(const Json& hexfloat) {
  return std::strtod(hexfloat.get<std::string>().c_str(), nullptr);
}

DType TypeNamed(const std::string& name) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (Name(dtype) == name) return dtype;
  }
  ADD_FAILURE() << name;
  return DType::kFloat32;
}

OptimizerKind KindNamed(const std::string& name) {
  const std::map<std::string, OptimizerKind> kinds = {
      {"sgd", OptimizerKind::kSgd},
      {"adam", OptimizerKind::kAdam},
      {"adamw", OptimizerKind::kAdamW},
      {"lion", OptimizerKind::kLion},
      {"adagrad", OptimizerKind::kAdagrad}};
  return kinds.at(name);
}

// Equal bits; any NaN equals any other.
void ExpectSame(const std::vector<float>& actual,
                const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    ASSERT_EQ(Bits(actual[i]), Bits(expected[i])) << "element " << i;
  }
}

// For the reference and for every instruction set of this machine.
class GoldenTest : public testing::TestWithParam<std::string> {
 protected:
  const Kernels& table() const {
    return GetParam() == "Reference" ? Reference() : *HostFor(GetParam());
  }
};

std::vector<std::string> Tables() {
  std::vector<std::string> names = HostTargets();
  names.insert(names.begin(), "Reference");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Tables, GoldenTest, testing::ValuesIn(Tables()),
                         [](const auto& info) { return info.param; });

TEST(GoldenNumbersTest, RandomNumbers) {
  const Json golden = ReadGolden("random.json");
  for (const Json& c : golden["cases"]) {
    const uint64_t key =
        StochasticKey(Word(c["seed"]), JobKey(c["job"].get<std::string>()),
                      c["tensor"], c["step"], c["hop"]);
    EXPECT_EQ(key, Word(c["key"]));
    const uint64_t cell_key = CellKey(key, c["cell"]);
    EXPECT_EQ(cell_key, Word(c["cell_key"]));
    const auto bits = Array<uint32_t>(c["bits"]);
    for (size_t i = 0; i < bits.size(); ++i) {
      EXPECT_EQ(StochasticBits(cell_key, golden["elements"][i]), bits[i]);
    }
  }
}

TEST_P(GoldenTest, Casts) {
  const Json golden = ReadGolden("convert.json");
  const auto in = Array<float>(golden["float32"]);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<uint16_t> out(in.size());
    table().cast(in.data(), dtype, in.size(), out.data());
    EXPECT_EQ(out, Array<uint16_t>(golden[std::string(Name(dtype))]));
  }
}

TEST_P(GoldenTest, SumsAndMeans) {
  int differ_from_rank_order = 0;
  const Json golden = ReadGolden("sum.json");
  for (const Json& c : golden["cases"]) {
    std::vector<Bytes> sources;
    std::vector<const void*> pointers;
    for (const Json& source : c["sources"]) {
      sources.push_back(FromHex(source));
      pointers.push_back(sources.back().data());
    }
    const auto expected = Array<float>(c["sum"]);
    std::vector<float> sum(expected.size());
    table().tree_sum(TypeNamed(c["dtype"]), pointers, sum.size(), sum.data());
    ExpectSame(sum, expected);

    const int world = static_cast<int>(sources.size());
    const std::array<RankRange, 1> all = {{{0, world}}};
    const std::array<const float*, 1> parts = {sum.data()};
    table().finish_mean(all, parts, world, sum.size(), sum.data());
    ExpectSame(sum, Array<float>(c["mean"]));
    differ_from_rank_order += expected != Array<float>(c["rank_order_sum"]);
  }
  EXPECT_GE(differ_from_rank_order, 3);  // negative control
}

TEST_P(GoldenTest, NormsOfCells) {
  const Json golden = ReadGolden("norm.json");
  for (const Json& c : golden["cells"]) {
    const auto x = Array<float>(c["x"]);
    EXPECT_EQ(table().cell_norm(x.data(), x.size()).norm2, Double(c["norm2"]));
  }
}

// Against Python's rationals.
TEST(GoldenNumbersTest, ExactSums) {
  const Json golden = ReadGolden("norm.json");
  for (const Json& c : golden["sums"]) {
    ExactSum sum;
    for (const Json& value : c["values"]) sum.Add(Double(value));
    EXPECT_EQ(sum.ToDouble(), Double(c["sum"]));
  }
}

HyperParameters Hyper(const Json& h) {
  const HyperParameters defaults;
  return {
      .lr = h["lr"],
      .beta1 = h.value("beta1", defaults.beta1),
      .beta2 = h.value("beta2", defaults.beta2),
      .eps = h.value("eps", defaults.eps),
      .weight_decay = h.value("weight_decay", 0.0),
      .momentum = h.value("momentum", 0.0),
      .dampening = h.value("dampening", 0.0),
      .nesterov = h.value("nesterov", false),
      .lr_decay = h.value("lr_decay", 0.0),
      .initial_accumulator_value = h.value("initial_accumulator_value", 0.0)};
}

TEST_P(GoldenTest, OptimizerSteps) {
  const Json golden = ReadGolden("optimizer.json");
  for (const Json& c : golden["cases"]) {
    const OptimizerKind kind = KindNamed(c["kind"]);
    const DType dtype = TypeNamed(c["dtype"]);
    auto w = Array<float>(c["w"]);
    std::vector<float> m(w.size());
    std::vector<float> v(w.size());
    Bytes weight(w.size() * SizeOf(dtype));
    int64_t t = 0;
    for (const Json& step : c["steps"]) {
      const StepScalars scalars = PrepareScalars(
          kind, Hyper(c["hyper"]), ++t, c["hyper"].value("clip", 1.0f));
      Bytes bits(sizeof(scalars));
      std::memcpy(bits.data(), &scalars, sizeof(scalars));
      EXPECT_EQ(bits, FromHex(step["scalars"])) << "step " << t;
      const auto g = Array<float>(step["g"]);
      table().optimizer_step(kind, scalars, w.size(), g.data(), w.data(),
                             m.data(),
                             StateArrays(kind, true) > 1 ? v.data() : nullptr,
                             dtype, weight.data());
      ExpectSame(w, Array<float>(step["w"]));
      ExpectSame(m, Array<float>(step["m"]));
      ExpectSame(v, Array<float>(step["v"]));
      EXPECT_EQ(weight, FromHex(step["weight"]));
    }
  }
}

uint64_t Fnv(const std::vector<float>& values) {
  return JobKey({reinterpret_cast<const char*>(values.data()),
                 values.size() * sizeof(float)});
}

TEST_P(GoldenTest, EncodedRuns) {
  const Json golden = ReadGolden("codec.json");
  const uint64_t key = Word(golden["key"]);
  for (const Json& c : golden["cases"]) {
    SCOPED_TRACE(c["spec"].get<std::string>() + " " +
                 c["input"].get<std::string>());
    CodecSpec spec;
    ASSERT_TRUE(UnpackSpec(Array<uint64_t>(c["spec"])[0], &spec));
    const auto x =
        Array<float>(golden["inputs"][c["input"].get<std::string>()]);
    const auto count = static_cast<int64_t>(x.size());
    Bytes encoded(EncodedBytes(spec, count));
    table().encode(spec, key, c["first"], count, x.data(), encoded.data());
    ASSERT_EQ(encoded, FromHex(c["encoded"]));

    std::vector<float> decoded(count);
    table().decode(spec, count, encoded.data(), decoded.data());
    if (c.contains("decoded")) {
      ExpectSame(decoded, Array<float>(c["decoded"]));
    } else {
      EXPECT_EQ(Fnv(decoded), Word(c["decoded_fnv"]));
    }
    std::vector<float> added(count, 0.5f);
    table().decode_add(spec, count, encoded.data(), added.data());
    for (float& value : decoded) value = 0.5f + value;
    ExpectSame(added, decoded);
  }
}

// FORMAT.md 9.
TEST_P(GoldenTest, Deltas) {
  const Json golden = ReadGolden("delta.json");
  for (const Json& c : golden["cases"]) {
    SCOPED_TRACE(c["spec"].get<std::string>() + " " +
                 c["dtype"].get<std::string>());
    CodecSpec spec;
    ASSERT_TRUE(UnpackSpec(Array<uint64_t>(c["spec"])[0], &spec));
    const DType dtype = TypeNamed(c["dtype"]);
    Bytes published = FromHex(c["published"]);
    for (const Json& version : c["versions"]) {
      const auto master = Array<float>(version["master"]);
      const auto count = static_cast<int64_t>(master.size());
      std::vector<float> values(count);
      table().subtract(master.data(), published.data(), dtype, count,
                       values.data());
      Bytes encoded(EncodedBytes(spec, count));
      table().encode(spec, 0, 0, count, values.data(), encoded.data());
      ASSERT_EQ(encoded, FromHex(version["encoded"]));
      table().reference(published.data(), dtype, count, values.data());
      table().decode_add(spec, count, encoded.data(), values.data());
      table().cast(values.data(), dtype, count, published.data());
      ASSERT_EQ(published, FromHex(version["published"]));
    }
  }
  uint64_t digest = 0;
  for (const Json& chunk : golden["chunks"]) {
    digest += Mix64(Mix64(Word(chunk[0]) + kGolden64) ^
                    Mix64(Word(chunk[1]) + kGolden64) ^ Word(chunk[2]));
  }
  EXPECT_EQ(digest, Word(golden["digest"]));
}

// FORMAT.md 10, with the operations of the table: the third step is voided.
TEST_P(GoldenTest, ErrorFeedback) {
  const Json golden = ReadGolden("feedback.json");
  for (const Json& c : golden["cases"]) {
    SCOPED_TRACE(c["spec"].get<std::string>());
    CodecSpec spec;
    ASSERT_TRUE(UnpackSpec(Array<uint64_t>(c["spec"])[0], &spec));
    std::vector<float> versions[2];
    int64_t applied = 0;
    for (const Json& step : c["steps"]) {
      const auto sums = Array<float>(step["sums"]);
      const auto count = static_cast<int64_t>(sums.size());
      for (auto& version : versions) version.resize(count);
      std::vector<float> y(count);
      const std::vector<const void*> sources = {sums.data(),
                                                versions[applied % 2].data()};
      table().tree_sum(DType::kFloat32, sources, count, y.data());
      Bytes encoded(EncodedBytes(spec, count));
      table().encode(spec, Word(step["key"]), 0, count, y.data(),
                     encoded.data());
      ASSERT_EQ(encoded, FromHex(step["encoded"]));
      std::vector<float>& written = versions[(applied + 1) % 2];
      table().decode(spec, count, encoded.data(), written.data());
      table().subtract(y.data(), written.data(), DType::kFloat32, count,
                       y.data());
      written = y;
      ExpectSame(written, Array<float>(step["residual"]));
      if (step["applied"].get<bool>()) ++applied;
    }
    EXPECT_EQ(applied, 4);
  }
}

// Negative control: another seed or cell gives other bytes where rounding is
// stochastic, and only there.
TEST_P(GoldenTest, KeyAndPlaceMatterOnlyWhenStochastic) {
  const Json golden = ReadGolden("codec.json");
  const auto x = Array<float>(golden["inputs"]["long"]);
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    CodecSpec spec;
    spec.rounding = rounding;
    const auto encode = [&](uint64_t key, int64_t first) {
      Bytes out(EncodedBytes(spec, x.size()));
      table().encode(spec, key, first, x.size(), x.data(), out.data());
      return out;
    };
    const bool stochastic = rounding == Rounding::kStochastic;
    EXPECT_EQ(encode(1, 0) != encode(2, 0), stochastic);
    EXPECT_EQ(encode(1, 0) != encode(1, 2048), stochastic);
  }
}

}  // namespace
}  // namespace ballast::kernels
