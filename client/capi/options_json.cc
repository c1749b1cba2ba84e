#include "client/capi/options_json.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/base/status_macros.h"

namespace ballast::capi {
namespace {

using Json = nlohmann::json;
using Setter = std::function<absl::Status(const Json& value)>;
using Fields = std::map<std::string, Setter>;

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = std::exchange(row[0], static_cast<int>(i));
    for (size_t j = 1; j <= b.size(); ++j) {
      const int change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::string Nearest(const std::string& key, const Fields& fields) {
  const auto nearest = std::min_element(
      fields.begin(), fields.end(), [&](const auto& a, const auto& b) {
        return EditDistance(key, a.first) < EditDistance(key, b.first);
      });
  return nearest->first;
}

absl::Status WrongValue(std::string_view want, const Json& value) {
  return absl::InvalidArgumentError(absl::StrCat(
      "must be ", std::string(want), ", not ",
      value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80)));
}

// Applies every member of `object`; errors are prefixed with its path.
absl::Status ApplyFields(const Json& object, const std::string& path,
                         const Fields& fields) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.empty() ? "options" : path, " must be an object"));
  }
  for (const auto& [key, value] : object.items()) {
    const auto field = fields.find(key);
    const std::string name = path.empty() ? key : absl::StrCat(path, ".", key);
    if (field == fields.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown option ", name, "; the nearest known one is ",
                       Nearest(key, fields)));
    }
    if (absl::Status status = field->second(value); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(name, " ", status.message()));
    }
  }
  return absl::OkStatus();
}

Setter String(std::function<void(std::string)> set) {
  return [set = std::move(set)](const Json& value) {
    if (!value.is_string()) return WrongValue("a string", value);
    set(value.get<std::string>());
    return absl::OkStatus();
  };
}

Setter Integer(std::function<void(int32_t)> set) {
  return [set = std::move(set)](const Json& value) {
    if (!value.is_number_integer() ||
        value.get<double>() > std::numeric_limits<int32_t>::max() ||
        value.get<double>() < std::numeric_limits<int32_t>::min()) {
      return WrongValue("a 32-bit integer", value);
    }
    set(value.get<int32_t>());
    return absl::OkStatus();
  };
}

Setter Number(std::function<void(double)> set) {
  return [set = std::move(set)](const Json& value) {
    if (!value.is_number()) return WrongValue("a number", value);
    set(value.get<double>());
    return absl::OkStatus();
  };
}

Setter Seconds(absl::Duration* target) {
  return [target](const Json& value) {
    if (!value.is_number() || !(value.get<double>() > 0)) {
      return WrongValue("a positive number of seconds", value);
    }
    *target = absl::Seconds(value.get<double>());
    return absl::OkStatus();
  };
}

template <typename E>
Setter Choice(std::vector<std::pair<std::string, E>> choices,
              std::function<void(E)> set) {
  return
      [choices = std::move(choices), set = std::move(set)](const Json& value) {
        std::string names;
        for (const auto& [name, choice] : choices) {
          if (value.is_string() && value.get<std::string>() == name) {
            set(choice);
            return absl::OkStatus();
          }
          absl::StrAppend(&names, names.empty() ? "" : ", ", "\"", name, "\"");
        }
        return WrongValue("one of " + names, value);
      };
}

absl::Status ParseGroup(const Json& json, const std::string& path,
                        v1::ParamGroup* group) {
  const Fields fields = {
      {"lr", Number([&](double v) { group->set_lr(v); })},
      {"beta1", Number([&](double v) { group->set_beta1(v); })},
      {"beta2", Number([&](double v) { group->set_beta2(v); })},
      {"eps", Number([&](double v) { group->set_eps(v); })},
      {"weight_decay", Number([&](double v) { group->set_weight_decay(v); })},
      {"momentum", Number([&](double v) { group->set_momentum(v); })},
      {"dampening", Number([&](double v) { group->set_dampening(v); })},
      {"nesterov",
       [&](const Json& value) {
         if (!value.is_boolean()) return WrongValue("true or false", value);
         group->set_nesterov(value.get<bool>());
         return absl::OkStatus();
       }},
      {"lr_decay", Number([&](double v) { group->set_lr_decay(v); })},
      {"initial_accumulator_value",
       Number([&](double v) { group->set_initial_accumulator_value(v); })},
  };
  return ApplyFields(json, path, fields);
}

absl::Status ParseOptimizer(const Json& json, v1::Optimizer* optimizer) {
  const Fields fields = {
      {"name", Choice<v1::OptimizerName>(
                   {{"sgd", v1::OPTIMIZER_SGD},
                    {"adam", v1::OPTIMIZER_ADAM},
                    {"adamw", v1::OPTIMIZER_ADAMW},
                    {"lion", v1::OPTIMIZER_LION},
                    {"adagrad", v1::OPTIMIZER_ADAGRAD}},
                   [&](v1::OptimizerName name) { optimizer->set_name(name); })},
      {"groups",
       [&](const Json& value) {
         if (!value.is_array() || value.empty()) {
           return WrongValue("a list of at least one object", value);
         }
         for (size_t i = 0; i < value.size(); ++i) {
           RETURN_IF_ERROR(ParseGroup(value[i], absl::StrCat("[", i, "]"),
                                      optimizer->add_groups()));
         }
         return absl::OkStatus();
       }},
  };
  RETURN_IF_ERROR(ApplyFields(json, "optimizer", fields));
  if (optimizer->name() == v1::OPTIMIZER_UNSPECIFIED ||
      optimizer->groups_size() == 0) {
    return absl::InvalidArgumentError("optimizer needs name and groups");
  }
  return absl::OkStatus();
}

Fields OptionFields(worker::Options& options) {
  v1::JobSpec* const job = &options.job;
  v1::Topology* const topology = &options.topology;
  return {
      {"job", String([=](std::string v) { job->set_name(v); })},
      {"tenant", String([=](std::string v) { job->set_tenant(v); })},
      {"address", String([&](std::string v) { options.address = v; })},
      {"token", String([&](std::string v) { options.token = v; })},
      {"coordinator", String([&](std::string v) { options.coordinator = v; })},
      {"load", String([&](std::string v) { options.load = v; })},
      {"exchange",
       String([=](std::string v) { job->mutable_exchange()->set_preset(v); })},
      {"rank", Integer([=](int32_t v) { topology->set_rank(v); })},
      {"world_size", Integer([=](int32_t v) { topology->set_world_size(v); })},
      {"local_rank", Integer([=](int32_t v) { topology->set_local_rank(v); })},
      {"local_world_size",
       Integer([=](int32_t v) { topology->set_local_world_size(v); })},
      {"node_rank", Integer([=](int32_t v) { topology->set_node_rank(v); })},
      {"gradient_clipping",
       Number([=](double v) { job->set_gradient_clipping(v); })},
      {"hold_seconds", Number([=](double v) { job->set_hold_seconds(v); })},
      {"bucket_bytes",
       [=](const Json& value) {
         if (!value.is_number_unsigned()) {
           return WrongValue("a number of bytes", value);
         }
         job->set_bucket_bytes(value.get<uint64_t>());
         return absl::OkStatus();
       }},
      {"optimizer",
       [=](const Json& value) {
         return ParseOptimizer(value, job->mutable_optimizer());
       }},
      {"resume",
       Choice<v1::Resume>({{"auto", v1::RESUME_AUTO},
                           {"never", v1::RESUME_NEVER},
                           {"must", v1::RESUME_MUST}},
                          [&](v1::Resume resume) { options.resume = resume; })},
      {"connect_timeout", Seconds(&options.connect_timeout)},
      {"open_timeout", Seconds(&options.open_timeout)},
  };
}

}  // namespace

absl::StatusOr<worker::Options> ParseOptions(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError("options are not valid JSON");
  }
  worker::Options options;
  options.topology.set_world_size(1);
  options.topology.set_local_world_size(1);
  options.job.mutable_exchange()->set_preset("exact");
  RETURN_IF_ERROR(ApplyFields(json, "", OptionFields(options)));
  if (options.job.name().empty()) {
    return absl::InvalidArgumentError("job is missing: give the job a name");
  }
  if (!options.job.has_optimizer()) {
    return absl::InvalidArgumentError(
        "optimizer is missing: {\"name\": …, \"groups\": […]}");
  }
  return options;
}

}  // namespace ballast::capi
