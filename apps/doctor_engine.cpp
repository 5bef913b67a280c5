#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/planning/cost_file.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/transport/cipher.h"

#include "apps/bench/catalog.h"
#include "apps/doctor_checks.h"
#include "apps/own_program.h"

namespace paceline::apps {
namespace {

Finding check_reduce_kernel() { return {"reduce kernel", Verdict::kOk, reduce_kernel_name(), ""}; }

Finding check_encryption() {
  return {"encryption", Verdict::kOk,
          fmt::format("{}, of TCP between hosts where it is asked for (paceline run --encrypt, "
                      "PACELINE_ENCRYPT=1)",
                      name_of(best_cipher())),
          ""};
}

Finding check_calibration() {
  const char* how = "paceline bench --calibrate";
  const auto path = calibration_path();
  if (path.empty()) {
    return {"calibration", Verdict::kOk,
            "none is kept (PACELINE_CALIBRATION is off, or there is no home): the planner goes by "
            "defaults",
            ""};
  }
  try {
    const auto costs = load_calibration(path);
    if (!costs) {
      return {"calibration", Verdict::kOk,
              fmt::format("none: the planner goes by defaults ({} measures this machine)", how),
              ""};
    }
    const bool is_noisy = costs->spread > kSteadySpread;
    return {"calibration", is_noisy ? Verdict::kWarn : Verdict::kOk,
            fmt::format("{} in {}", provenance(*costs), path.string()), is_noisy ? how : ""};
  } catch (const Error& error) {
    return {"calibration", Verdict::kWarn, error.what(), how};
  }
}

// Each of these libraries may be installed beside the one that a backend is linked to.
Finding check_bench_peers() {
  const char* path = std::getenv("PATH");
  std::vector<std::string> here, absent;
  for (const std::string& name : bench::peer_names()) {
    const bench::CatalogEntry& entry = *bench::find_entry(name);
    const auto found = bench::locate(entry, contestants_folder(), path != nullptr ? path : "");
    (found.missing.empty() ? here : absent).push_back(entry.title);
  }
  std::string text = here.empty() ? "none" : fmt::format("{}", fmt::join(here, ", "));
  if (!absent.empty()) text += fmt::format("; not {}", fmt::join(absent, ", "));
  return {"bench --peer", Verdict::kOk, text, ""};
}

}  // namespace

std::vector<Finding> check_engine() {
  return {check_reduce_kernel(), check_encryption(), check_calibration(), check_bench_peers()};
}

}  // namespace paceline::apps
