#include "paceline/planning/forecast/machine.h"

#include <array>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"

namespace paceline::planning {
namespace {

constexpr int kMaxCores = 65536;

double bytes_of(const Setting& setting) {
  constexpr std::array<Unit, 3> kUnits = {{{"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}};
  return quantity(setting, kUnits, "a size such as 512GB (MB, GB, TB)");
}

double share_of(const Setting& setting) {
  constexpr std::array<Unit, 1> kUnits = {{{"%", 0.01}}};
  return quantity(setting, kUnits, "a share such as 5%");
}

void take(Machine& machine, const Setting& setting) {
  const std::string_view key = setting.key;
  if (key == "hosts") {
    machine.hosts = setting.whole_number(1, kMaxPlannedRanks);
  } else if (key == "ranks") {
    machine.ranks_per_host = setting.whole_number(1, kMaxPlannedRanks);
  } else if (key == "link") {
    machine.links.network.bytes_per_s = rate(setting);
  } else if (key == "latency") {
    machine.links.network.latency_s = duration(setting);
  } else if (key == "cores") {
    machine.cores_per_host = setting.whole_number(1, kMaxCores);
  } else if (key == "memory") {
    machine.memory_bytes = bytes_of(setting);
  } else if (key == "mtbf") {
    machine.mtbf_s = duration(setting);
  } else if (key == "checkpoint") {
    machine.checkpoint_s = duration(setting);
  } else if (key == "restart") {
    machine.restart_s = duration(setting);
  } else if (key == "interval") {
    machine.interval_s = duration(setting);
  } else if (key == "stragglers") {
    machine.stragglers = share_of(setting);
  } else {
    throw SettingError(
        fmt::format("'{}' is not one of hosts=, ranks=, link=, latency=, cores=, memory=, mtbf=, "
                    "checkpoint=, restart=, interval=, stragglers=; for example "
                    "hosts=64,ranks=8,link=100Gbit,mtbf=5000h",
                    key));
  }
}

std::string interval_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.4g} s", seconds);
  if (seconds < 7200) return fmt::format("{:.4g} min", seconds / 60);
  return fmt::format("{:.4g} h", seconds / 3600);
}

}  // namespace

Machine parse_machine(std::string_view text, const Machine& defaults) {
  Machine machine = defaults;
  bool has_hosts = false;
  for_each_setting(text, [&](const Setting& setting) {
    take(machine, setting);
    has_hosts |= setting.key == "hosts";
  });
  if (!has_hosts)
    throw SettingError(fmt::format("{}: hosts= is missing; for example hosts=64,ranks=8", text));
  if (machine.hosts > kMaxPlannedRanks / machine.ranks_per_host) {
    throw SettingError(fmt::format("{} hosts x {} ranks are more than {} ranks", machine.hosts,
                                   machine.ranks_per_host, kMaxPlannedRanks));
  }
  return machine;
}

std::string describe(const Machine& machine) {
  std::string text = fmt::format("{} x {}", counted(machine.hosts, "host"),
                                 counted(machine.ranks_per_host, "rank"));
  if (machine.hosts > 1) {
    const LinkCost& network = machine.links.network;
    text += fmt::format(", {:.4g} Gbit/s, {:.4g} µs", network.bytes_per_s * 8 / 1e9,
                        network.latency_s * 1e6);
  }
  if (machine.cores_per_host > 0) text += fmt::format(", {} cores a host", machine.cores_per_host);
  if (machine.mtbf_s > 0) {
    text += fmt::format(", a host fails every {}, a checkpoint takes {}, a restart {}",
                        interval_text(machine.mtbf_s), interval_text(machine.checkpoint_s),
                        interval_text(machine.restart_s));
  }
  if (machine.stragglers > 0)
    text += fmt::format(", ranks differ by {:.3g}%", machine.stragglers * 100);
  return text;
}

}  // namespace paceline::planning
