#include "apps/binding_option.h"

#include "paceline/engine/core/cpu_list.h"

namespace paceline::apps {
namespace {

using launcher::Binding;
using launcher::BindTo;

constexpr std::string_view kMapPrefix = "map:";

std::optional<Binding> parse_map(std::string_view sets) {
  Binding binding{BindTo::kMap, {}};
  for (;;) {
    const auto end = sets.find(';');
    auto cpus = parse_cpu_list(std::string(sets.substr(0, end)));
    if (!cpus) return {};
    binding.map.push_back(std::move(*cpus));
    if (end == sets.npos) return binding;
    sets.remove_prefix(end + 1);
  }
}

}  // namespace

std::optional<Binding> parse_binding(const std::string& text) {
  for (const BindTo to :
       {BindTo::kCore, BindTo::kCache, BindTo::kNuma, BindTo::kPackage, BindTo::kNone}) {
    if (text == launcher::name_of(to)) return Binding{to, {}};
  }
  if (!text.starts_with(kMapPrefix)) return {};
  return parse_map(std::string_view(text).substr(kMapPrefix.size()));
}

std::string format_binding(const Binding& binding) {
  if (binding.to != BindTo::kMap) return launcher::name_of(binding.to);
  std::string text;
  for (const auto& cpus : binding.map) {
    text += (text.empty() ? std::string(kMapPrefix) : ";") + format_cpu_list(cpus);
  }
  return text;
}

std::optional<Binding> parse_numa_binding(const std::string& text) {
  if (text == "node") return Binding{BindTo::kNuma, {}};
  if (text == "socket") return Binding{BindTo::kPackage, {}};
  if (text == "exclusive") return Binding{BindTo::kCore, {}};
  if (text == "core-complex") return Binding{BindTo::kCache, {}};
  return {};
}

}  // namespace paceline::apps
