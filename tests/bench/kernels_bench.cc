// Kernels of the host on one core, as ratios to memcpy in the same run.
//
//   kernels_bench [--json FILE] [--target NAME] [--mib N] [ROW…]
//
// Every row moves buffers of N MiB (256), far larger than the caches of one
// core. Its rate counts the bytes that the kernel reads and writes, memcpy's
// counts both too; a row alternates with memcpy and the best of its rounds
// stands against the best of memcpy's rounds.
//
// `adamw` writes fp32 weights, `adamw/bf16` bf16 ones; `read` does nothing but
// load. encode/NAME-window encodes all into the room of
// one chunk, as between nodes, where the link takes the codes from the cache.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/host/host.h"
#include "kernels/hyper_parameters.h"
#include "nlohmann/json.hpp"

namespace ballast::kernels {
namespace {

constexpr int kRounds = 7;
// What the engine hands to a kernel at a time: the work of one chunk.
constexpr int64_t kChunkElements = 65536;

struct Row {
  std::string name;
  double bytes;  // read and written
  std::function<void()> run;
};

struct Result {
  std::string name;
  double ratio_to_memcpy;
  double seconds;
};

// Of this thread on its core: other processes' turns do not count.
double Seconds(const std::function<void()>& run) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
  };
  const double begin = now();
  run();
  return now() - begin;
}

// Touched memory: gradients of about normal size, all finite.
class Memory {
 public:
  explicit Memory(int64_t bytes)
      : elements_(bytes / 4), floats_(std::make_unique<float[]>(elements_)) {
    uint32_t state = 1;
    for (int64_t i = 0; i < elements_; ++i) {
      state = state * 1664525u + 1013904223u;
      floats_[i] = (static_cast<float>(state >> 8) - 8388608.0f) * 1e-9f;
    }
  }
  float* floats() const { return floats_.get(); }
  uint8_t* bytes() const { return reinterpret_cast<uint8_t*>(floats_.get()); }
  int64_t elements() const { return elements_; }

 private:
  int64_t elements_;
  std::unique_ptr<float[]> floats_;
};

class Bench {
 public:
  Bench(const Kernels& kernels, int64_t bytes) : kernels_(kernels) {
    for (int i = 0; i < 6; ++i) memory_.emplace_back(bytes);
    elements_ = memory_[0].elements();
    for (int64_t i = 0; i < elements_; ++i) {
      memory_[3].floats()[i] *= memory_[3].floats()[i];  // v is not negative
    }
  }

  std::vector<Row> Rows() {
    const auto n = static_cast<double>(elements_);
    std::vector<Row> rows;
    rows.push_back({"read", 4 * n, [this] { Read(); }});
    rows.push_back({"tree_sum/4", 20 * n, [this] { TreeSum(); }});
    rows.push_back({"norm", 4 * n, [this] { Norm(); }});
    // Read: w, m, v, g. Written: w, m, v and the weight in its own type; with
    // undo the old w, m, v too, which are in the cache.
    rows.push_back({"adamw", 32 * n, [this] { AdamW(DType::kFloat32); }});
    rows.push_back(
        {"adamw-undo", 44 * n, [this] { AdamWUndo(DType::kFloat32); }});
    rows.push_back({"adamw/bf16", 30 * n, [this] { AdamW(DType::kBFloat16); }});
    rows.push_back(
        {"adamw-undo/bf16", 42 * n, [this] { AdamWUndo(DType::kBFloat16); }});
    rows.push_back({"cast/bf16", 6 * n, [this] { Cast(); }});
    AddCodec("int8", {.bits = 8, .block = 256}, &rows);
    AddCodec("int4", {.bits = 4, .block = 128}, &rows);
    AddCodec("int4-hadamard", {.bits = 4, .block = 128, .hadamard = 32}, &rows);
    AddCodec("int2", {.bits = 2, .block = 2048}, &rows);
    for (const int bits : {8, 4, 2}) {
      AddEncode("int" + std::to_string(bits) + "-stochastic",
                {.bits = bits, .block = 128, .rounding = Rounding::kStochastic},
                &rows);
    }
    return rows;
  }

  double MemcpyBytes() const { return 8.0 * elements_; }
  void Memcpy() {
    std::memcpy(memory_[4].floats(), memory_[5].floats(), elements_ * 4);
  }

 private:
  template <typename Function>
  void ForEachChunk(Function function) {
    for (int64_t i = 0; i < elements_; i += kChunkElements) {
      function(i, std::min(kChunkElements, elements_ - i));
    }
  }

  void Read() {
    const auto* const words =
        reinterpret_cast<const uint64_t*>(memory_[0].floats());
    std::array<uint64_t, 8> sums = {};
    for (int64_t i = 0; i + 8 <= elements_ / 2; i += 8) {
      __builtin_prefetch(words + i + 512);
      for (int lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
    }
    for (const uint64_t sum : sums) read_ = read_ + sum;
  }

  void TreeSum() {
    ForEachChunk([this](int64_t i, int64_t count) {
      std::array<const void*, 4> sources;
      for (int r = 0; r < 4; ++r) sources[r] = memory_[r].floats() + i;
      kernels_.tree_sum(DType::kFloat32, sources, count,
                        memory_[4].floats() + i);
    });
  }

  void Norm() {
    double sum = 0;
    for (int64_t i = 0; i < elements_; i += kCellElements) {
      sum += kernels_
                 .cell_norm(memory_[0].floats() + i,
                            std::min(kCellElements, elements_ - i))
                 .norm2;
    }
    if (sum == 0) std::puts("no norm");  // the sum is used
  }

  void AdamW(DType dtype) {
    ForEachChunk([this, dtype](int64_t i, int64_t count) {
      kernels_.optimizer_step(OptimizerKind::kAdamW, scalars_, count,
                              memory_[0].floats() + i, memory_[1].floats() + i,
                              memory_[2].floats() + i, memory_[3].floats() + i,
                              dtype, memory_[4].bytes() + SizeOf(dtype) * i);
    });
  }

  // One record of a chunk, used again and again, as a pool thread does.
  void AdamWUndo(DType dtype) {
    float* const record = memory_[5].floats();
    std::atomic<int64_t> saved = 0;
    ForEachChunk([&](int64_t i, int64_t count) {
      kernels_.optimizer_step_undo(
          OptimizerKind::kAdamW, scalars_, count, memory_[0].floats() + i,
          memory_[1].floats() + i, memory_[2].floats() + i,
          memory_[3].floats() + i, dtype,
          memory_[4].bytes() + SizeOf(dtype) * i,
          {record, record + kChunkElements, record + 2 * kChunkElements, &saved,
           0});
    });
  }

  void Cast() {
    ForEachChunk([this](int64_t i, int64_t count) {
      kernels_.cast(memory_[0].floats() + i, DType::kBFloat16, count,
                    memory_[4].bytes() + 2 * i);
    });
  }

  // Chunks are whole cells, each a run of its own, one behind the other.
  static int64_t ChunkBytes(const CodecSpec& spec) {
    return EncodedBytes(spec, kChunkElements);
  }
  uint8_t* ChunkAt(const CodecSpec& spec, int64_t element) const {
    return memory_[4].bytes() + element / kChunkElements * ChunkBytes(spec);
  }
  double BytesPerElement(const CodecSpec& spec) const {
    return static_cast<double>(ChunkBytes(spec)) / kChunkElements;
  }

  void AddEncode(const std::string& name, const CodecSpec& spec,
                 std::vector<Row>* rows) {
    rows->push_back({"encode/" + name, (4 + BytesPerElement(spec)) * elements_,
                     [this, spec] {
                       ForEachChunk([&](int64_t i, int64_t count) {
                         kernels_.encode(spec, 0, i, count,
                                         memory_[0].floats() + i,
                                         ChunkAt(spec, i));
                       });
                     }});
    rows->push_back({"encode/" + name + "-window",
                     (4 + BytesPerElement(spec)) * elements_, [this, spec] {
                       ForEachChunk([&](int64_t i, int64_t count) {
                         kernels_.encode(spec, 0, i, count,
                                         memory_[0].floats() + i,
                                         memory_[4].bytes());
                       });
                     }});
  }

  void AddCodec(const std::string& name, const CodecSpec& spec,
                std::vector<Row>* rows) {
    AddEncode(name, spec, rows);
    rows->push_back({"decode_add/" + name,
                     (8 + BytesPerElement(spec)) * elements_, [this, spec] {
                       ForEachChunk([&](int64_t i, int64_t count) {
                         kernels_.decode_add(spec, count, ChunkAt(spec, i),
                                             memory_[5].floats() + i);
                       });
                     }});
  }

  const StepScalars scalars_ = PrepareScalars(
      OptimizerKind::kAdamW, {.lr = 1e-3, .weight_decay = 0.1}, 100, 0.5f);
  const Kernels& kernels_;
  std::vector<Memory> memory_;
  int64_t elements_;
  volatile uint64_t read_ = 0;  // so that reading is not optimized away
};

std::vector<Result> Measure(const std::vector<std::string>& wanted,
                            Bench* bench) {
  std::vector<Result> results;
  for (const Row& row : bench->Rows()) {
    if (!wanted.empty() &&
        std::find(wanted.begin(), wanted.end(), row.name) == wanted.end()) {
      continue;
    }
    double memcpy_seconds = 1e9;
    double seconds = 1e9;
    row.run();
    for (int round = 0; round < kRounds; ++round) {
      memcpy_seconds =
          std::min(memcpy_seconds, Seconds([bench] { bench->Memcpy(); }));
      row.run();  // decode_add: memcpy has replaced what it reads
      seconds = std::min(seconds, Seconds(row.run));
    }
    const double rate = row.bytes / seconds;
    const double memcpy_rate = bench->MemcpyBytes() / memcpy_seconds;
    results.push_back({row.name, rate / memcpy_rate, seconds});
    std::printf("%-26s %5.2f  %6.1f GB/s, memcpy %6.1f GB/s\n",
                row.name.c_str(), rate / memcpy_rate, rate / 1e9,
                memcpy_rate / 1e9);
  }
  return results;
}

void WriteJson(const std::string& path, const std::vector<Result>& results) {
  nlohmann::json list = nlohmann::json::array();
  for (const Result& result : results) {
    list.push_back({{"name", result.name},
                    {"ratio_to_memcpy", result.ratio_to_memcpy},
                    {"seconds", result.seconds}});
  }
  std::ofstream(path) << list.dump(2) << "\n";
}

int Main(const std::vector<std::string>& arguments) {
  std::string json;
  std::string target = HostTarget();
  int64_t mib = 256;
  std::vector<std::string> wanted;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const bool has_value = i + 1 < arguments.size();
    if (argument == "--json" && has_value) {
      json = arguments[++i];
    } else if (argument == "--target" && has_value) {
      target = arguments[++i];
    } else if (argument == "--mib" && has_value) {
      mib = std::stoll(arguments[++i]);
    } else if (argument.starts_with("-")) {
      std::fprintf(stderr, "kernels_bench: unknown argument %s\n",
                   argument.c_str());
      return 2;
    } else {
      wanted.push_back(argument);
    }
  }
  const Kernels* kernels = HostFor(target);
  if (kernels == nullptr) {
    std::fprintf(stderr, "kernels_bench: no target %s here\n", target.c_str());
    return 2;
  }
  std::printf("target %s, buffers of %lld MiB, one core\n", target.c_str(),
              static_cast<long long>(mib));
  Bench bench(*kernels, mib << 20);
  const std::vector<Result> results = Measure(wanted, &bench);
  if (!json.empty()) WriteJson(json, results);
  return 0;
}

}  // namespace
}  // namespace ballast::kernels

int main(int argc, char** argv) {
  return ballast::kernels::Main({argv + 1, argv + argc});
}
