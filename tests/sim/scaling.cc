// How an exchange scales with the nodes when only the links cost time:
//
//   scaling [--nodes N] [--elements E] [--rate BITS] [--preset P]…
//           [--json FILE]                          (tools/bench
//                                                   scaling-simulated)
//
// The daemons' own code in virtual time (tests/sim/README.md), one worker a
// node, SGD on E fp32 elements (1 Mi) in buckets of 256 KiB, interfaces of BITS
// per second (1e8) behind a fast switch, 50 us of latency; kernels take up to
// 0.2 ms a task and run beside one another. A row is the difference between a
// run of four steps and one of two, so that the start does not count:
//
//   seconds          virtual, of one step
//   MB               that one node sends in it
//   of the wire      bytes / rate / seconds: 1 is a link that never rests
#include <cstdint>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "kernels/host/host.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

struct Arguments {
  int nodes = 8;
  int64_t elements = 1 << 20;
  double bits_per_second = 1e8;
  std::vector<std::string> presets;
  std::string json;
};

bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--nodes") {
      if (!absl::SimpleAtoi(value, &arguments->nodes)) return false;
    } else if (name == "--elements") {
      if (!absl::SimpleAtoi(value, &arguments->elements)) return false;
    } else if (name == "--rate") {
      if (!absl::SimpleAtod(value, &arguments->bits_per_second)) return false;
    } else if (name == "--preset") {
      arguments->presets.push_back(value);
    } else if (name == "--json") {
      arguments->json = value;
    } else {
      return false;
    }
  }
  if (arguments->presets.empty()) {
    arguments->presets = {"exact", "zeropp", "delta4"};
  }
  return argc % 2 == 1 && arguments->nodes >= 1 && arguments->nodes <= 64 &&
         arguments->elements > 0 && arguments->bits_per_second > 0;
}

// InvalidArgument: no such preset. Internal: the run broke an invariant.
absl::StatusOr<Result> RunSteps(const Arguments& arguments,
                                const std::string& preset, int nodes,
                                int steps) {
  const std::string text = absl::StrFormat(
      "nodes %d\nworkers 1\nexchange %s\ntensor w float32 %d\n"
      "optimizer sgd lr 0.1\nbucket_bytes 262144\nchunk_bytes 65536\n"
      "in_flight 8\nsteps %d\nlink delay 50us 50us rate %f shared\n",
      nodes, preset, arguments.elements, steps, arguments.bits_per_second / 8);
  absl::StatusOr<Scenario> scenario = ParseScenario("scaling", text);
  if (!scenario.ok()) return scenario.status();
  Result result = Cluster(*scenario, 1, kernels::Host()).Run();
  if (result.passed()) return result;
  return absl::InternalError(result.violations.front());
}

absl::StatusOr<nlohmann::json> Measure(const Arguments& arguments,
                                       const std::string& preset, int nodes) {
  const auto two = RunSteps(arguments, preset, nodes, 2);
  if (!two.ok()) return two.status();
  const auto four = RunSteps(arguments, preset, nodes, 4);
  if (!four.ok()) return four.status();
  const double seconds =
      absl::ToDoubleSeconds(four->virtual_time - two->virtual_time) / 2;
  const double bytes =
      static_cast<double>(four->wire_bytes - two->wire_bytes) / 2 / nodes;
  nlohmann::json row = {{"name", "scaling-simulated/" + preset},
                        {"nodes", nodes},
                        {"seconds", seconds},
                        {"wire_bytes", static_cast<int64_t>(bytes)}};
  if (nodes > 1) {
    row["ratio_to_bound"] = bytes * 8 / arguments.bits_per_second / seconds;
  }
  return row;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    std::cerr << "usage: scaling [--nodes 1..64] [--elements E] [--rate BITS] "
                 "[--preset P]... [--json FILE]\n";
    return 2;
  }
  nlohmann::json rows = nlohmann::json::array();
  std::cout << absl::StrFormat("%-8s %6s %9s %9s %12s\n", "", "nodes",
                               "seconds", "MB", "of the wire");
  for (const std::string& preset : arguments.presets) {
    for (int nodes = 1; nodes <= arguments.nodes; ++nodes) {
      const auto row = Measure(arguments, preset, nodes);
      if (!row.ok()) {
        std::cerr << row.status() << "\n";
        return 1;
      }
      std::cout << absl::StrFormat(
          "%-8s %6d %9.4f %9.3f %12s\n", preset, nodes,
          row->at("seconds").get<double>(),
          row->at("wire_bytes").get<double>() / 1e6,
          row->contains("ratio_to_bound")
              ? absl::StrFormat("%.2f", row->at("ratio_to_bound").get<double>())
              : "");
      std::cout.flush();
      rows.push_back(*row);
    }
  }
  if (!arguments.json.empty()) {
    std::ofstream(arguments.json) << rows.dump(1) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace ballast::sim

int main(int argc, char** argv) { return ballast::sim::Main(argc, argv); }
