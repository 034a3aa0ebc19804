#pragma once
// One list of members per configuration struct, read and written by the same code: an unknown key, or a value of the wrong
// type, is one clear error.

#include <concepts>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"

namespace lethe {

/// throws  std::invalid_argument "name: expected …, found …" unless `good`
inline void expect(bool good, const char* name, const std::string& expected, const std::string& found) {
  if (!good) throw std::invalid_argument(std::string(name) + ": expected " + expected + ", found " + found);
}

/// Specialised for an enumeration that JSON writes as strings:
/// `static inline const std::vector<std::pair<E, std::string>> names`.
template <class E>
struct EnumNames;

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

/// Collects members into a JSON object: `JsonWriter writer{json}; writer("width", config.width); …`. An absent optional
/// is null.
struct JsonWriter {
  nlohmann::json& object;

  template <class T>
  void operator()(const char* key, const T& value) {
    if constexpr (IsOptional<T>::value) {
      object[key] = value ? nlohmann::json(*value) : nlohmann::json(nullptr);
    } else if constexpr (std::is_enum_v<T>) {
      for (const auto& [member, name] : EnumNames<T>::names) {
        if (member == value) object[key] = name;
      }
    } else {
      object[key] = value;
    }
  }
};

/// Reads members from a JSON object; absent members keep their values.
///
/// throws  std::invalid_argument "<what>.<key>: expected …, found …"; `finish` throws for keys that no member read
class JsonReader {
 public:
  JsonReader(const nlohmann::json& object, std::string what) : object_(object), what_(std::move(what)) {
    if (!object.is_object()) {
      throw std::invalid_argument(what_ + ": expected a JSON object, found " + shown(object));
    }
  }

  template <class T>
  void operator()(const char* key, T& value) {
    known_.insert(key);
    if (object_.contains(key)) read(key, object_.at(key), value);
  }

  void finish() const {
    for (const auto& [key, value] : object_.items())
      if (!known_.count(key))
        throw std::invalid_argument(what_ + ": expected keys among " + listed(known_) + ", found " + key);
  }

 private:
  template <class T>
  void read(const std::string& key, const nlohmann::json& json, T& value) const {
    const auto expect = [&](bool good, const std::string& expected) {
      if (!good) throw std::invalid_argument(what_ + "." + key + ": expected " + expected + ", found " + shown(json));
    };
    if constexpr (IsOptional<T>::value) {
      if (json.is_null()) {
        value.reset();
      } else {
        read(key, json, value.emplace());
      }
    } else if constexpr (std::is_enum_v<T>) {
      for (const auto& [member, name] : EnumNames<T>::names)
        if (json == name) return void(value = member);
      expect(false, "one of " + listed(EnumNames<T>::names | std::views::values));
    } else if constexpr (std::same_as<T, bool>) {
      expect(json.is_boolean(), "true or false");
      value = json.get<bool>();
    } else if constexpr (std::unsigned_integral<T>) {
      expect(json.is_number_unsigned() || (json.is_number_integer() && json.get<int64_t>() >= 0), "a whole number ≥ 0");
      value = json.get<T>();
    } else if constexpr (std::integral<T>) {
      expect(json.is_number_integer(), "a whole number");
      expect(!json.is_number_unsigned() || std::in_range<T>(json.get<uint64_t>()),
             "a whole number of 64 bits with sign");
      value = json.get<T>();
    } else if constexpr (std::floating_point<T>) {
      expect(json.is_number(), "a number");
      value = json.get<T>();
    } else if constexpr (std::same_as<T, std::string>) {
      expect(json.is_string(), "a string");
      value = json.get<std::string>();
    } else if constexpr (std::same_as<T, nlohmann::json>) {
      value = json;
    } else if constexpr (IsVector<T>::value) {
      expect(json.is_array(), "a list");
      value.clear();
      for (size_t i = 0; i < json.size(); ++i) read(key + "[" + std::to_string(i) + "]", json[i], value.emplace_back());
    } else {
      from_json(json, value);
    }
  }

  const nlohmann::json& object_;
  std::string what_;
  std::set<std::string> known_;
};

}  // namespace lethe
