#include "server/snapshot/files/manifest.h"

#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/optimizer_name.h"
#include "nlohmann/json.hpp"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/snapshot/files/safetensors.h"

namespace ballast::snapshot {
namespace {

using Json = nlohmann::json;

constexpr char kStart[] = "{\"checksum\":\"";
constexpr size_t kHexBytes = 16;
constexpr int kMaxDepth = 6;
constexpr int64_t kMaxStep = int64_t{1} << 40;
constexpr size_t kMaxTextBytes = 8 << 10;

absl::Status Bad(const std::string& what) {
  return absl::DataLossError(absl::StrCat("manifest: ", what));
}

Json ToJson(const kernels::HyperParameters& group) {
  return {{"lr", group.lr},
          {"beta1", group.beta1},
          {"beta2", group.beta2},
          {"eps", group.eps},
          {"weight_decay", group.weight_decay},
          {"momentum", group.momentum},
          {"dampening", group.dampening},
          {"nesterov", group.nesterov},
          {"lr_decay", group.lr_decay},
          {"initial_accumulator_value", group.initial_accumulator_value}};
}

// An object whose members are all taken, each of the type asked for.
class Members {
 public:
  Members(const Json& json, std::string path) : json_(json), path_(path) {}

  absl::Status CheckCount(size_t count) const {
    if (json_.is_object() && json_.size() == count) return absl::OkStatus();
    return Bad(absl::StrCat(path_, " is not an object of ", count, " members"));
  }

  absl::StatusOr<const Json*> Find(const char* key) const {
    const auto it = json_.find(key);
    if (it == json_.end()) return Bad(absl::StrCat(path_, " lacks ", key));
    return &*it;
  }

  template <typename Number>
  absl::Status Get(const char* key, int64_t min, int64_t max,
                   Number* value) const {
    ASSIGN_OR_RETURN(const Json* const json, Find(key));
    if (!json->is_number_integer() || json->get<double>() > 9.1e18 ||
        json->get<int64_t>() < min || json->get<int64_t>() > max) {
      return Bad(absl::StrCat(path_, ".", key, " is not an integer in [", min,
                              ", ", max, "]"));
    }
    *value = static_cast<Number>(json->get<int64_t>());
    return absl::OkStatus();
  }

  absl::Status Get(const char* key, double* value) const {
    ASSIGN_OR_RETURN(const Json* const json, Find(key));
    if (!json->is_number() || !std::isfinite(json->get<double>())) {
      return Bad(absl::StrCat(path_, ".", key, " is not a finite number"));
    }
    *value = json->get<double>();
    return absl::OkStatus();
  }

  absl::Status Get(const char* key, bool* value) const {
    ASSIGN_OR_RETURN(const Json* const json, Find(key));
    if (!json->is_boolean()) {
      return Bad(absl::StrCat(path_, ".", key, " is not true or false"));
    }
    *value = json->get<bool>();
    return absl::OkStatus();
  }

  absl::Status Get(const char* key, std::string* value) const {
    ASSIGN_OR_RETURN(const Json* const json, Find(key));
    if (!json->is_string() ||
        json->get_ref<const std::string&>().size() > kMaxTextBytes) {
      return Bad(absl::StrCat(path_, ".", key, " is not a short text"));
    }
    *value = json->get<std::string>();
    return absl::OkStatus();
  }

  absl::StatusOr<const Json*> List(const char* key, size_t max) const {
    ASSIGN_OR_RETURN(const Json* const json, Find(key));
    if (!json->is_array() || json->size() > max) {
      return Bad(absl::StrCat(path_, ".", key, " is not a list of at most ",
                              max, " entries"));
    }
    return json;
  }

 private:
  const Json& json_;
  const std::string path_;
};

absl::Status ParseGroup(const Json& json, kernels::HyperParameters* group) {
  const Members members(json, "group");
  RETURN_IF_ERROR(members.CheckCount(10));
  RETURN_IF_ERROR(members.Get("lr", &group->lr));
  RETURN_IF_ERROR(members.Get("beta1", &group->beta1));
  RETURN_IF_ERROR(members.Get("beta2", &group->beta2));
  RETURN_IF_ERROR(members.Get("eps", &group->eps));
  RETURN_IF_ERROR(members.Get("weight_decay", &group->weight_decay));
  RETURN_IF_ERROR(members.Get("momentum", &group->momentum));
  RETURN_IF_ERROR(members.Get("dampening", &group->dampening));
  RETURN_IF_ERROR(members.Get("nesterov", &group->nesterov));
  RETURN_IF_ERROR(members.Get("lr_decay", &group->lr_decay));
  return members.Get("initial_accumulator_value",
                     &group->initial_accumulator_value);
}

absl::Status ParseTensor(const Json& json, TensorInfo* tensor) {
  const Members members(json, "tensor");
  RETURN_IF_ERROR(members.CheckCount(5));
  RETURN_IF_ERROR(members.Get("name", &tensor->name));
  if (const auto named = base::CheckTensorName(tensor->name); !named.ok()) {
    return Bad(std::string(named.message()));
  }
  std::string dtype;
  RETURN_IF_ERROR(members.Get("dtype", &dtype));
  bool is_known = false;
  for (const kernels::DType known :
       {kernels::DType::kFloat32, kernels::DType::kBFloat16,
        kernels::DType::kFloat16}) {
    if (kernels::Name(known) != dtype) continue;
    tensor->dtype = known;
    is_known = true;
  }
  if (!is_known) {
    return Bad(absl::StrCat("tensor ", base::Quoted(tensor->name),
                            " has dtype ", base::Quoted(dtype)));
  }
  RETURN_IF_ERROR(members.Get("trainable", &tensor->trainable));
  RETURN_IF_ERROR(members.Get("group", 0, kMaxGroups - 1, &tensor->group));
  ASSIGN_OR_RETURN(const Json* const shape, members.List("shape", 32));
  int64_t elements = 1;
  for (const Json& dimension : *shape) {
    if (!dimension.is_number_unsigned() ||
        dimension.get<uint64_t>() > static_cast<uint64_t>(kMaxElements) ||
        __builtin_mul_overflow(elements, dimension.get<int64_t>(), &elements) ||
        elements > kMaxElements) {
      return Bad(absl::StrCat("the shape of tensor ",
                              base::Quoted(tensor->name), " is impossible"));
    }
    tensor->shape.push_back(dimension.get<int64_t>());
  }
  return absl::OkStatus();
}

absl::Status ParseFile(const Json& json, const std::string& name,
                       FileInfo* file) {
  const Members members(json, "file");
  RETURN_IF_ERROR(members.CheckCount(3));
  RETURN_IF_ERROR(members.Get("name", &file->name));
  // The name is known, so that no other path is ever opened.
  if (file->name != name) {
    return Bad(
        absl::StrCat("file ", base::Quoted(file->name), " instead of ", name));
  }
  RETURN_IF_ERROR(members.Get("bytes", 0, INT64_MAX, &file->size_bytes));
  std::string checksum;
  RETURN_IF_ERROR(members.Get("header_checksum", &checksum));
  if (!FromHex16(checksum, &file->header_checksum)) {
    return Bad(absl::StrCat("the checksum of ", name, " is no checksum"));
  }
  return absl::OkStatus();
}

absl::Status ParseBudget(const Json& json, size_t num_tensors,
                         BudgetInfo* budget) {
  const Members members(json, "budget");
  RETURN_IF_ERROR(members.CheckCount(4));
  RETURN_IF_ERROR(members.Get(
      "tensor", 0, static_cast<int64_t>(num_tensors) - 1, &budget->tensor));
  RETURN_IF_ERROR(members.Get("path", &budget->path));
  RETURN_IF_ERROR(members.Get("codec", &budget->codec));
  return members.Get("calm", 0, kMaxCalm, &budget->calm);
}

absl::Status ParseOptimizer(const Members& members, Manifest* manifest) {
  std::string name;
  RETURN_IF_ERROR(members.Get("optimizer", &name));
  bool is_known = false;
  for (int kind = 1; IsKnown(static_cast<kernels::OptimizerKind>(kind));
       ++kind) {
    if (kernels::Name(static_cast<kernels::OptimizerKind>(kind)) != name) {
      continue;
    }
    manifest->optimizer = static_cast<kernels::OptimizerKind>(kind);
    is_known = true;
  }
  if (!is_known) return Bad(absl::StrCat("optimizer ", base::Quoted(name)));
  const int without = StateArrays(manifest->optimizer, false);
  const int with = StateArrays(manifest->optimizer, true);
  RETURN_IF_ERROR(
      members.Get("moments", without, with, &manifest->num_moments));
  ASSIGN_OR_RETURN(const Json* const groups,
                   members.List("groups", kMaxGroups));
  for (const Json& json : *groups) {
    RETURN_IF_ERROR(ParseGroup(json, &manifest->groups.emplace_back()));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const Manifest& manifest) {
  std::vector<std::string_view> names;
  names.reserve(manifest.tensors.size());
  for (const TensorInfo& tensor : manifest.tensors) {
    names.push_back(tensor.name);
    if (static_cast<size_t>(tensor.group) >= manifest.groups.size()) {
      return Bad(absl::StrCat("tensor ", base::Quoted(tensor.name),
                              " is of group ", tensor.group,
                              ", which does not exist"));
    }
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return Bad(absl::StrCat("tensor ", base::Quoted(*twice), " twice"));
}

absl::StatusOr<Manifest> ParseBody(const Json& json) {
  const Members members(json, "ballast");
  int version = 0;
  RETURN_IF_ERROR(members.Get("version", 1, INT32_MAX, &version));
  if (version > kManifestVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "manifest: version ", version, "; this program reads version ",
        kManifestVersion, " and older ones: use the one that wrote it"));
  }
  RETURN_IF_ERROR(members.CheckCount(version == 1 ? 17 : 19));
  Manifest manifest;
  RETURN_IF_ERROR(members.Get("id", &manifest.id));
  RETURN_IF_ERROR(members.Get("job", &manifest.job));
  RETURN_IF_ERROR(members.Get("tenant", &manifest.tenant));
  for (const std::string& name : {manifest.job, manifest.tenant}) {
    const auto named = base::CheckJobName(name);
    if (!named.ok()) return Bad(std::string(named.message()));
  }
  RETURN_IF_ERROR(members.Get("uid", 0, UINT32_MAX, &manifest.uid));
  RETURN_IF_ERROR(members.Get("step", 0, kMaxStep, &manifest.step));
  RETURN_IF_ERROR(members.Get("generation", 0, kMaxStep, &manifest.generation));
  RETURN_IF_ERROR(members.Get("optimizer_step", 0, manifest.step,
                              &manifest.optimizer_step));
  RETURN_IF_ERROR(members.Get("nodes", 1, kMaxNodes, &manifest.num_nodes));
  RETURN_IF_ERROR(members.Get("local_world_size", 1, kMaxNodes,
                              &manifest.local_world_size));
  RETURN_IF_ERROR(members.Get("exchange", &manifest.exchange));
  RETURN_IF_ERROR(members.Get("has_published", &manifest.has_published));
  RETURN_IF_ERROR(ParseOptimizer(members, &manifest));
  ASSIGN_OR_RETURN(const Json* const tensors,
                   members.List("tensors", kMaxTensors));
  for (const Json& tensor : *tensors) {
    RETURN_IF_ERROR(ParseTensor(tensor, &manifest.tensors.emplace_back()));
  }
  RETURN_IF_ERROR(CheckNames(manifest));
  if (version > 1) {
    RETURN_IF_ERROR(members.Get("has_residuals", &manifest.has_residuals));
    ASSIGN_OR_RETURN(const Json* const budget,
                     members.List("budget", 2 * manifest.tensors.size()));
    for (const Json& entry : *budget) {
      RETURN_IF_ERROR(ParseBudget(entry, manifest.tensors.size(),
                                  &manifest.budget.emplace_back()));
    }
  }
  ASSIGN_OR_RETURN(const Json* const files, members.List("files", kMaxNodes));
  if (files->size() != static_cast<size_t>(manifest.num_nodes)) {
    return Bad(absl::StrCat(files->size(), " files of ", manifest.num_nodes,
                            " nodes"));
  }
  for (int n = 0; n < manifest.num_nodes; ++n) {
    RETURN_IF_ERROR(ParseFile((*files)[n], ShardName(n, manifest.num_nodes),
                              &manifest.files.emplace_back()));
  }
  return manifest;
}

}  // namespace

int64_t NumElements(const TensorInfo& tensor) {
  int64_t elements = 1;
  for (const int64_t dimension : tensor.shape) elements *= dimension;
  return elements;
}

std::string ShardName(int node, int num_nodes) {
  return absl::StrFormat("shard-%05d-of-%05d.safetensors", node, num_nodes);
}

std::string ToText(const Manifest& manifest) {
  Json tensors = Json::array();
  for (const TensorInfo& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"dtype", std::string(kernels::Name(tensor.dtype))},
                       {"trainable", tensor.trainable},
                       {"group", tensor.group}});
  }
  Json files = Json::array();
  for (const FileInfo& file : manifest.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.size_bytes},
                     {"header_checksum", ToHex16(file.header_checksum)}});
  }
  Json groups = Json::array();
  for (const auto& group : manifest.groups) groups.push_back(ToJson(group));
  Json budget = Json::array();
  for (const BudgetInfo& entry : manifest.budget) {
    budget.push_back({{"tensor", entry.tensor},
                      {"path", entry.path},
                      {"codec", entry.codec},
                      {"calm", entry.calm}});
  }
  const Json body = {
      {"version", kManifestVersion},
      {"id", manifest.id},
      {"job", manifest.job},
      {"tenant", manifest.tenant},
      {"uid", manifest.uid},
      {"step", manifest.step},
      {"generation", manifest.generation},
      {"optimizer_step", manifest.optimizer_step},
      {"nodes", manifest.num_nodes},
      {"local_world_size", manifest.local_world_size},
      {"exchange", manifest.exchange},
      {"optimizer", std::string(kernels::Name(manifest.optimizer))},
      {"moments", manifest.num_moments},
      {"groups", std::move(groups)},
      {"has_published", manifest.has_published},
      {"has_residuals", manifest.has_residuals},
      {"budget", std::move(budget)},
      {"tensors", std::move(tensors)},
      {"files", std::move(files)}};
  const std::string rest = absl::StrCat(
      "\",\"ballast\":",
      body.dump(1, ' ', true, Json::error_handler_t::replace), "}\n");
  return absl::StrCat(kStart, ToHex16(Checksum(rest)), rest);
}

absl::StatusOr<Manifest> ParseManifest(std::string_view text) {
  if (text.size() > kMaxManifestBytes) {
    return Bad(absl::StrCat("it has ", text.size(), " bytes"));
  }
  constexpr size_t kHead = sizeof(kStart) - 1;
  uint64_t checksum = 0;
  if (text.size() < kHead + kHexBytes || text.substr(0, kHead) != kStart ||
      !FromHex16(text.substr(kHead, kHexBytes), &checksum)) {
    return Bad("it does not begin with its checksum");
  }
  if (Checksum(text.substr(kHead + kHexBytes)) != checksum) {
    return Bad("its bytes are not those that were written (checksum)");
  }
  bool is_deep = false;
  const Json json = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, Json&) {
        is_deep = is_deep || depth > kMaxDepth;
        return depth <= kMaxDepth;
      },
      /*allow_exceptions=*/false);
  if (json.is_discarded() || is_deep || !json.is_object() || json.size() != 2 ||
      !json.contains("ballast") || !json["ballast"].is_object()) {
    return Bad("it is not the JSON of one");
  }
  return ParseBody(json["ballast"]);
}

}  // namespace ballast::snapshot
