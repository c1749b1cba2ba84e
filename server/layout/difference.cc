#include "server/layout/difference.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/dtype.h"
#include "server/base/names.h"

namespace ballast::layout {
namespace {

std::string ShapeText(const TensorSpec& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]");
}

std::string_view TrainableText(const TensorSpec& tensor) {
  return tensor.trainable ? "trainable" : "frozen";
}

std::string DTypeText(const TensorSpec& tensor) {
  const std::string_view name = kernels::Name(tensor.dtype);
  return std::string(name);
}

std::string Differ(std::string_view what, const std::string& here,
                   const std::string& there) {
  return absl::StrCat(absl::string_view(what.data(), what.size()), here,
                      " here, ", there, " there");
}

std::string TensorDifference(const TensorSpec& here, const TensorSpec& there) {
  if (here.shape != there.shape) {
    return Differ("shape ", ShapeText(here), ShapeText(there));
  }
  if (here.dtype != there.dtype) {
    return Differ("dtype ", DTypeText(here), DTypeText(there));
  }
  if (here.trainable != there.trainable) {
    return Differ("", std::string(TrainableText(here)),
                  std::string(TrainableText(there)));
  }
  return Differ("param group ", absl::StrCat(here.group),
                absl::StrCat(there.group));
}

}  // namespace

std::string Difference(std::span<const TensorSpec> here,
                       std::span<const TensorSpec> there) {
  const size_t common = std::min(here.size(), there.size());
  for (size_t i = 0; i < common; ++i) {
    if (here[i] == there[i]) continue;
    if (here[i].name != there[i].name) {
      return absl::StrCat("tensor ", i, ": ", base::Quoted(here[i].name),
                          " here, ", base::Quoted(there[i].name), " there");
    }
    return absl::StrCat("tensor ", i, " ", base::Quoted(here[i].name), ": ",
                        TensorDifference(here[i], there[i]));
  }
  if (here.size() == there.size()) return "";
  const bool here_longer = here.size() > there.size();
  const TensorSpec& extra = here_longer ? here[common] : there[common];
  return absl::StrCat(here.size(), " tensors here, ", there.size(),
                      " there: tensor ", common, " ", base::Quoted(extra.name),
                      " is missing ", here_longer ? "there" : "here");
}

}  // namespace ballast::layout
