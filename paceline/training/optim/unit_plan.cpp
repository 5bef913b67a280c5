#include "paceline/training/optim/unit_plan.h"

#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "paceline/engine/core/check.h"

namespace paceline::optim {
namespace {

using Rows = std::vector<std::vector<std::size_t>>;

// From here on a gradient is a unit of its own: it may be reduced where it lies.
constexpr std::size_t kAloneBytes = 512 << 10;

constexpr std::size_t kNotChosen = std::numeric_limits<std::size_t>::max();

// By the parameter's number: the unit that it was chosen for.
std::vector<std::size_t> chosen_units(const std::vector<at::Tensor>& parameters,
                                      const std::vector<std::vector<at::Tensor>>& chosen) {
  std::unordered_map<const void*, std::size_t> numbers;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    numbers.emplace(parameters[i].unsafeGetTensorImpl(), i);
  std::vector<std::size_t> units(parameters.size(), kNotChosen);
  for (std::size_t unit = 0; unit < chosen.size(); ++unit) {
    for (const at::Tensor& tensor : chosen[unit]) {
      const auto found = numbers.find(tensor.unsafeGetTensorImpl());
      check(found != numbers.end(), "unit {} has a tensor that is not one of the parameters", unit);
      std::size_t& of = units[found->second];
      check(of == kNotChosen || of == unit, "parameter {} is in unit {} and in unit {}",
            found->second, of, unit);
      of = unit;
    }
  }
  return units;
}

}  // namespace

Rows rows_by_type(const std::vector<at::Tensor>& parameters) {
  Rows rows;
  std::map<at::ScalarType, std::size_t> row_of;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto [found, is_new] = row_of.emplace(parameters[i].scalar_type(), rows.size());
    if (is_new) rows.emplace_back();
    rows[found->second].push_back(i);
  }
  return rows;
}

Rows plan_units(const std::vector<at::Tensor>& parameters, std::size_t unit_bytes,
                const std::vector<std::vector<at::Tensor>>& chosen) {
  struct Open {
    std::size_t row = 0;
    std::size_t bytes = 0;
  };
  const std::vector<std::size_t> units = chosen_units(parameters, chosen);
  Rows rows;
  std::map<std::pair<std::size_t, at::ScalarType>, Open> open;  // that more parameters fit into
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const std::size_t bytes = parameters[i].nbytes();
    if (units[i] == kNotChosen && bytes >= kAloneBytes) {
      rows.push_back({i});
      continue;
    }
    const std::pair key{units[i], parameters[i].scalar_type()};
    const auto [unit, is_new] = open.emplace(key, Open{.row = rows.size()});
    if (is_new) rows.emplace_back();
    rows[unit->second.row].push_back(i);
    unit->second.bytes += bytes;
    if (units[i] == kNotChosen && unit->second.bytes >= unit_bytes) open.erase(unit);
  }
  return rows;
}

}  // namespace paceline::optim
