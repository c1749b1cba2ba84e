#include "proto/to_json.h"

#include <google/protobuf/descriptor.h>

#include <cmath>
#include <string>

namespace ballast::proto {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

ordered_json Number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value;
}

ordered_json Text(const FieldDescriptor* field, const std::string& value) {
  if (field->type() != FieldDescriptor::TYPE_BYTES) return value;
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char c : value) {
    hex += kDigits[c >> 4];
    hex += kDigits[c & 15];
  }
  return hex;
}

// The value of a field, or of element `i` of a repeated one (i >= 0).
ordered_json Value(const Message& message, const FieldDescriptor* field,
                   int i) {
  const Reflection* r = message.GetReflection();
  const auto pick = [&](auto single, auto repeated) {
    return i < 0 ? (r->*single)(message, field)
                 : (r->*repeated)(message, field, i);
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return pick(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return pick(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return pick(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return pick(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    case FieldDescriptor::CPPTYPE_BOOL:
      return pick(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(
          pick(&Reflection::GetDouble, &Reflection::GetRepeatedDouble));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(pick(&Reflection::GetFloat, &Reflection::GetRepeatedFloat));
    case FieldDescriptor::CPPTYPE_ENUM:
      return pick(&Reflection::GetEnum, &Reflection::GetRepeatedEnum)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(field,
                  pick(&Reflection::GetString, &Reflection::GetRepeatedString));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(i < 0 ? r->GetMessage(message, field)
                          : r->GetRepeatedMessage(message, field, i));
  }
  return nullptr;
}

}  // namespace

ordered_json ToJson(const Message& message) {
  ordered_json object = ordered_json::object();
  const auto* descriptor = message.GetDescriptor();
  for (int f = 0; f < descriptor->field_count(); ++f) {
    const FieldDescriptor* const field = descriptor->field(f);
    if (!field->is_repeated()) {
      object[field->name()] = Value(message, field, -1);
      continue;
    }
    ordered_json array = ordered_json::array();
    const int size = message.GetReflection()->FieldSize(message, field);
    for (int i = 0; i < size; ++i) array.push_back(Value(message, field, i));
    object[field->name()] = std::move(array);
  }
  return object;
}

}  // namespace ballast::proto
