#include "server/daemon/config/yaml_message.h"

#include <google/protobuf/descriptor.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/daemon/config/units.h"

namespace ballast::daemon {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

bool IsSection(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

bool IsSize(const FieldDescriptor* field) {
  return absl::EndsWith(field->name(), "_bytes");
}

std::string Join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : absl::StrCat(prefix, ".", name);
}

void CollectKeys(const Descriptor* descriptor, const std::string& prefix,
                 std::vector<std::string>* keys) {
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* const field = descriptor->field(i);
    const std::string key = Join(prefix, field->name());
    keys->push_back(key);
    if (IsSection(field)) CollectKeys(field->message_type(), key, keys);
  }
}

// Levenshtein's.
int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string_view LastPart(std::string_view key) {
  return key.substr(key.rfind('.') + 1);  // npos + 1 is 0
}

absl::Status UnknownKey(const Descriptor* root, const std::string& key) {
  std::vector<std::string> keys;
  CollectKeys(root, "", &keys);
  // A right name in the wrong section is the nearest of all but the path.
  const std::string cut = key.substr(0, 100);
  const auto distance = [&](const std::string& known) {
    return std::min(EditDistance(cut, known),
                    EditDistance(LastPart(cut), LastPart(known)) + 1);
  };
  const std::string nearest = *std::min_element(
      keys.begin(), keys.end(),
      [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  return absl::InvalidArgumentError(
      absl::StrCat("unknown config key ", base::Quoted(key),
                   "; the nearest known key is \"", nearest, "\""));
}

absl::Status WrongValue(const std::string& key, const std::string& value,
                        const char* expected) {
  return absl::InvalidArgumentError(absl::StrCat("config key \"", key, "\" is ",
                                                 base::Quoted(value),
                                                 ", expected ", expected));
}

absl::Status SetScalar(const std::string& key, const FieldDescriptor* field,
                       const std::string& text, Message* message) {
  const auto* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      reflection->SetString(message, field, text);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") {
        return WrongValue(key, text, "true or false");
      }
      reflection->SetBool(message, field, text == "true");
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) {
        return WrongValue(key, text, "an integer");
      }
      reflection->SetInt32(message, field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      const auto value = ParseSize(text);
      if (!value.has_value()) {
        return WrongValue(key, text,
                          "a size, like 4096, \"256KiB\" or \"4GiB\"");
      }
      reflection->SetUInt64(message, field, *value);
      return absl::OkStatus();
    }
    default:
      return absl::InternalError(
          absl::StrCat("config key \"", key, "\" has an unsupported type"));
  }
}

class Applier {
 public:
  explicit Applier(const Descriptor* root) : root_(root) {}

  absl::Status Apply(const YAML::Node& node, const std::string& prefix,
                     Message* message) const {
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a key of section \"", prefix, "\" is not a plain name"));
      }
      const std::string name = entry.first.Scalar();
      const std::string key = Join(prefix, name);
      if (!seen.insert(name).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("config key ", base::Quoted(key), " is given twice"));
      }
      const FieldDescriptor* const field =
          message->GetDescriptor()->FindFieldByName(name);
      if (field == nullptr) return UnknownKey(root_, key);
      RETURN_IF_ERROR(ApplyField(entry.second, key, field, message));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ApplyField(const YAML::Node& node, const std::string& key,
                          const FieldDescriptor* field,
                          Message* message) const {
    if (IsSection(field)) {
      if (node.IsNull()) return absl::OkStatus();  // an empty section
      if (!node.IsMap()) {
        return WrongValue(key, node.IsScalar() ? node.Scalar() : "a list",
                          "a section with keys of its own");
      }
      return Apply(node, key,
                   message->GetReflection()->MutableMessage(message, field));
    }
    if (!node.IsScalar()) {
      return WrongValue(key,
                        node.IsNull()  ? "empty"
                        : node.IsMap() ? "a section"
                                       : "a list",
                        "one value");
    }
    return SetScalar(key, field, node.Scalar(), message);
  }

  const Descriptor* const root_;
};

}  // namespace

absl::Status ApplyYamlTo(const std::string& yaml, Message* message) {
  // yaml-cpp throws; its exceptions end here.
  try {
    const YAML::Node root = YAML::Load(yaml);
    if (root.IsNull()) return absl::OkStatus();
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(
          "the configuration is not a set of sections");
    }
    return Applier(message->GetDescriptor()).Apply(root, "", message);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration is not YAML: ", e.what()));
  }
}

absl::Status SetKey(std::string_view key, const std::string& text,
                    Message* message) {
  const Descriptor* const root = message->GetDescriptor();
  std::string_view rest = key;
  while (true) {
    const size_t dot = rest.find('.');
    const std::string name(rest.substr(0, dot));
    const FieldDescriptor* const field =
        message->GetDescriptor()->FindFieldByName(name);
    const bool is_last = dot == std::string_view::npos;
    if (field == nullptr || (!is_last && !IsSection(field))) {
      return UnknownKey(root, std::string(key));
    }
    if (is_last) {
      if (IsSection(field)) {
        return WrongValue(std::string(key), text,
                          "a key of this section (section.key=value)");
      }
      return SetScalar(std::string(key), field, text, message);
    }
    message = message->GetReflection()->MutableMessage(message, field);
    rest.remove_prefix(dot + 1);
  }
}

std::string ToYaml(const Message& message) {
  std::string yaml;
  const Descriptor* const root = message.GetDescriptor();
  for (int s = 0; s < root->field_count(); ++s) {
    const FieldDescriptor* const section = root->field(s);
    absl::StrAppend(&yaml, section->name(), ":\n");
    const Message& values =
        message.GetReflection()->GetMessage(message, section);
    const auto* reflection = values.GetReflection();
    for (int i = 0; i < values.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* const field = values.GetDescriptor()->field(i);
      std::string text;
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_BOOL:
          text = reflection->GetBool(values, field) ? "true" : "false";
          break;
        case FieldDescriptor::CPPTYPE_INT32:
          text = absl::StrCat(reflection->GetInt32(values, field));
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          text = IsSize(field)
                     ? FormatSize(reflection->GetUInt64(values, field))
                     : absl::StrCat(reflection->GetUInt64(values, field));
          break;
        default:
          text = absl::StrCat(
              "\"", absl::CHexEscape(reflection->GetString(values, field)),
              "\"");
      }
      absl::StrAppend(&yaml, "  ", field->name(), ": ", text, "\n");
    }
  }
  return yaml;
}

}  // namespace ballast::daemon
