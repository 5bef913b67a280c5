#include "paceline/engine/core/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include <fmt/format.h>

namespace paceline {

void Setting::refuse(std::string_view allowed) const {
  throw SettingError(fmt::format("{}={}: not {}", key, value, allowed));
}

int Setting::whole_number(int least, int most) const {
  int number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, status] = std::from_chars(value.data(), end, number);
  if (status != std::errc() || stop != end || number < least || number > most)
    refuse(fmt::format("a whole number from {} to {}", least, most));
  return number;
}

double quantity(const Setting& setting, std::span<const Unit> units, std::string_view allowed) {
  const std::string_view text = setting.value;
  double value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || !std::isfinite(value) || value <= 0) setting.refuse(allowed);
  const std::string_view unit = text.substr(static_cast<std::size_t>(stop - text.data()));
  for (const auto& [name, factor] : units) {
    if (unit == name) return value * factor;
  }
  setting.refuse(allowed);
}

double rate(const Setting& setting) {
  constexpr double kBitsPerByte = 8;
  constexpr std::array<Unit, 4> kUnits = {
      {{"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {"Tbit", 1e12}}};
  return quantity(setting, kUnits, "a rate as 25Gbit (kbit, Mbit, Gbit, Tbit)") / kBitsPerByte;
}

double duration(const Setting& setting) {
  constexpr std::array<Unit, 6> kUnits = {
      {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}}};
  return quantity(setting, kUnits, "a time as 20us (us, ms, s, min, h, d)");
}

void for_each_setting(std::string_view text, const std::function<void(const Setting&)>& take) {
  std::set<std::string_view> seen;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const std::size_t equals = std::min(item.find('='), item.size());
    const Setting setting{item.substr(0, equals), item.substr(std::min(equals + 1, item.size()))};
    take(setting);
    if (!seen.insert(setting.key).second)
      throw SettingError(fmt::format("{} is given twice", setting.key));
    begin = end + 1;
  }
}

}  // namespace paceline
