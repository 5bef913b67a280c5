// The checks of `paceline doctor` that look at this build, its libraries and the engine.

#include <filesystem>
#include <memory>
#include <string>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/selection/calibration.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/transport/cipher.h"
#include "paceline/engine/transport/ucx/ucx.h"
#include "paceline/launcher/diagnosis/thread_census.h"

#include "apps/bench/catalog.h"
#include "apps/cli/own_program.h"
#include "apps/doctor/doctor_report.h"

namespace paceline::apps {

namespace {

Finding check_reduce_kernel() {
  return {"reduce kernel", CheckResult::kOk, reduce_kernel_name(), ""};
}

Finding check_encryption() {
  return {
      "encryption", CheckResult::kOk,
      fmt::format(
          "{}, for TCP between hosts, if requested (paceline run --encrypt, PACELINE_ENCRYPT=1)",
          name_of(best_cipher())),
      ""};
}

Finding check_calibration() {
  const char* how = "paceline bench --calibrate";
  const auto path = calibration_path();
  if (path.empty()) {
    return {"calibration", CheckResult::kOk,
            "none is stored (PACELINE_CALIBRATION is off, or there is no home): the planner uses "
            "defaults",
            ""};
  }
  try {
    const auto costs = load_calibration(path);
    if (!costs) {
      return {"calibration", CheckResult::kOk,
              fmt::format("none: the planner uses defaults ({} measures this machine)", how), ""};
    }
    const bool is_noisy = costs->spread > kSteadySpread;
    return {"calibration", is_noisy ? CheckResult::kWarn : CheckResult::kOk,
            fmt::format("{} in {}", provenance(*costs), path.string()), is_noisy ? how : ""};
  } catch (const Error& error) {
    return {"calibration", CheckResult::kWarn, error.what(), how};
  }
}

// Finds the programs of `paceline bench` for other libraries. Such a library may be installed in
// addition to the one to which a backend is linked.
Finding check_bench_peers() {
  std::vector<std::string> here, absent;
  for (const std::string& name : bench::peer_names()) {
    const bench::CatalogEntry& entry = *bench::find_entry(name);
    const auto found = bench::locate(entry, contestants_folder());
    (found.missing.empty() ? here : absent).push_back(entry.title);
  }
  std::string text = here.empty() ? "none" : fmt::format("{}", fmt::join(here, ", "));
  if (!absent.empty()) text += fmt::format("; not {}", fmt::join(absent, ", "));
  return {"bench --peer", CheckResult::kOk, text, ""};
}

}  // namespace

std::vector<Finding> check_engine() {
  return {check_reduce_kernel(), check_encryption(), check_calibration(), check_bench_peers()};
}

namespace {

using Library = std::unique_ptr<void, int (*)(void*)>;

Library load(const char* name) { return {dlopen(name, RTLD_LAZY | RTLD_LOCAL), dlclose}; }

// The path at which the loader found the library, with symbolic links resolved.
std::string path_of(const Library& library) {
  link_map* map = nullptr;
  if (dlinfo(library.get(), RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "?";
  std::error_code error;
  const auto real = std::filesystem::canonical(map->l_name, error);
  return error ? map->l_name : real.string();
}

Finding check_version() { return {"build", CheckResult::kOk, version_text(), ""}; }

Finding check_libtorch() {
  if (built_with_libtorch()) return {"LibTorch", CheckResult::kOk, "part of this build", ""};
  return {"LibTorch", CheckResult::kInfo, "not built: launcher and collectives only",
          "apt-get install libtorch-dev, then cmake --preset release"};
}

// Debian's LibTorch multiplies matrices with the library that is installed as libblas.so.3. The
// reference implementation is 18 times slower than OpenBLAS.
Finding check_blas() {
  // Without LibTorch, BLAS is not needed.
  const CheckResult result = built_with_libtorch() ? CheckResult::kFail : CheckResult::kInfo;
  const char* advice = "apt-get install libopenblas0-pthread";
  const Library blas = load("libblas.so.3");
  if (!blas) {
    return {"BLAS", result, "libblas.so.3 was not found", advice};
  }
  const std::string path = path_of(blas);
  if (dlsym(blas.get(), "openblas_get_config") != nullptr) {
    return {"BLAS", CheckResult::kOk, "OpenBLAS: " + path, ""};
  }
  if (!launcher::is_reference_blas(path)) return {"BLAS", CheckResult::kOk, path, ""};
  return {"BLAS", result, "reference BLAS, 18 times slower than OpenBLAS: " + path, advice};
}

std::vector<Finding> check_backends() {
  std::vector<Finding> findings;
  for (const BackendInfo& info : list_backends()) {
    std::string text = info.available ? info.text : "not built: " + info.text;
    if (info.name == "paceline" && ucx_info().available) text += ", UCX";
    findings.push_back({"backend " + info.name,
                        info.available ? CheckResult::kOk : CheckResult::kInfo, std::move(text),
                        info.advice});
  }
  return findings;
}

// Whether the library for programs with tensors contains the backend c10d. This command itself does
// not contain it.
Finding check_c10d() {
  if (built_with_c10d_gloo()) {
    return {"backend c10d", CheckResult::kOk, "LibTorch's own Gloo, for programs with tensors", ""};
  }
  return {"backend c10d", CheckResult::kInfo,
          "not built: Gloo's headers were not found; register_c10d_backend() registers other "
          "c10d backends",
          "apt-get install libgloo-dev, then configure and build again"};
}

// Checks whether UCX finds the InfiniBand cards: a card that it does not find is the usual reason
// for a slow network.
Finding check_ucx() {
  const UcxInfo info = ucx_info();
  if (!info.available)
    return {"transport ucx", CheckResult::kInfo, "not available: " + info.text, info.advice};
  if (info.rdma_devices.empty()) {
    return {"transport ucx", CheckResult::kOk, info.text + "; it finds no RDMA device here", ""};
  }
  return {"transport ucx", CheckResult::kOk,
          fmt::format("{}; RDMA devices: {}", info.text, fmt::join(info.rdma_devices, ", ")), ""};
}

Finding check_environment() {
  try {
    const LaunchEnvironment environment = detect_launch_environment();
    if (environment.launcher == "none")
      return {"launcher", CheckResult::kOk, "none: this process is alone", ""};
    return {"launcher", CheckResult::kOk,
            fmt::format("{}: rank {} of {}", environment.launcher, environment.rank,
                        environment.world_size),
            ""};
  } catch (const Error& error) {
    return {"launcher", CheckResult::kFail, error.what(),
            "unset the variables, or start the process in the way that the message names"};
  }
}

}  // namespace

std::vector<Finding> check_build() {
  std::vector<Finding> findings = {check_version(), check_libtorch(), check_blas()};
  for (Finding& backend : check_backends()) findings.push_back(std::move(backend));
  if (built_with_libtorch()) findings.push_back(check_c10d());
  findings.push_back(check_ucx());
  findings.push_back(check_environment());
  return findings;
}

}  // namespace paceline::apps
