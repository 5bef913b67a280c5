#pragma once

// How durations, optional values and endpoints are written in the JSON of the launchers' messages:
// a duration as its count, a missing value as null. The macros NLOHMANN_DEFINE_TYPE_... write the
// other members of the messages.
//
// Include this file only in sources: public headers do not use nlohmann types.

#include <chrono>
#include <optional>

#include <nlohmann/json.hpp>

#include "paceline/engine/core/system/socket.h"

namespace nlohmann {

template <class Rep, class Period>
struct adl_serializer<std::chrono::duration<Rep, Period>> {
  using Duration = std::chrono::duration<Rep, Period>;
  static void to_json(json& to, const Duration& from) { to = from.count(); }
  static void from_json(const json& from, Duration& to) { to = Duration(from.get<Rep>()); }
};

template <class T>
struct adl_serializer<std::optional<T>> {
  static void to_json(json& to, const std::optional<T>& from) {
    if (from) {
      to = *from;
    } else {
      to = nullptr;
    }
  }
  static void from_json(const json& from, std::optional<T>& to) {
    to.reset();
    if (!from.is_null()) from.get_to(to.emplace());
  }
};

}  // namespace nlohmann

namespace paceline {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Endpoint, host, port)

}  // namespace paceline
