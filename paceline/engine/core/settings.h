#pragma once

// Settings as people type them behind one option: "hosts=64,link=25Gbit,latency=20us".
//
// Thread safety: pure functions.

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace paceline {

// What is wrong with a text, and what is allowed.
class SettingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Setting {
  std::string_view key, value;

  // Throws SettingError: "link=25: not a rate as 25Gbit".
  [[noreturn]] void refuse(std::string_view allowed) const;
  // A whole number; `refuse`s others.
  int whole_number(int least, int most) const;
};

struct Unit {
  std::string_view name;
  double factor;
};
// A number above 0 and one of the units, times its factor.
double quantity(const Setting& setting, std::span<const Unit> units, std::string_view allowed);
// In bytes a second, of "25Gbit" (kbit, Mbit, Gbit, Tbit).
double rate(const Setting& setting);
// In seconds, of "20us" (us, ms, s, min, h, d).
double duration(const Setting& setting);

// Each setting in order. Throws SettingError for a key that comes twice.
void for_each_setting(std::string_view text, const std::function<void(const Setting&)>& take);

}  // namespace paceline
