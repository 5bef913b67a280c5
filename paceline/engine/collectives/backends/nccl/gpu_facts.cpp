#include "paceline/engine/collectives/backends/nccl/gpu_facts.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/host.h"

namespace paceline {
namespace {

constexpr std::size_t kNumFields = 6;
constexpr std::size_t kLongestPath =
    300;  // so that the whole text stays below tell_all()'s limit, 500 bytes

}  // namespace

std::string GpuFacts::encode() const {
  const std::string path =
      nccl_path.size() <= kLongestPath
          ? nccl_path
          : fmt::format("...{}",
                        std::string_view(nccl_path).substr(nccl_path.size() - kLongestPath));
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", nccl_version, device, visible, bus_id, host, path);
}

GpuFacts GpuFacts::decode(const std::string& text) {
  std::vector<std::string> fields;
  for (const std::string_view field : split(text, '\n')) fields.emplace_back(field);
  const auto number = [&](std::size_t i) {
    return i < fields.size() ? parse_number<int>(fields[i]) : std::optional<int>();
  };
  const auto version = number(0), device = number(1), visible = number(2);
  if (fields.size() != kNumFields || !version || !device || !visible) {
    fail(ErrorCode::kCorrupt,
         "'{}' does not describe a rank's GPU; all ranks must run the same build", text);
  }
  return {.nccl_version = *version,
          .nccl_path = fields[5],
          .host = fields[4],
          .bus_id = fields[3],
          .device = *device,
          .visible = *visible};
}

int device_of_local_rank(int local_rank, int visible) { return std::max(local_rank, 0) % visible; }

GpuFacts gpu_facts_here(const NcclApi& api, const LaunchEnvironment& who) {
  const CudaApi& cuda = *api.cuda;
  GpuFacts facts{.nccl_version = api.version,
                 .nccl_path = api.library.path,
                 .host = host_token(),
                 .bus_id = "",
                 .device = 0,
                 .visible = 0};
  cuda.require(cuda.cudaGetDeviceCount(&facts.visible), "", "counting the GPUs");
  if (facts.visible == 0) cuda.require(cuda::kNoDevice, "", "counting the GPUs");
  cuda.require(cuda.cudaGetDevice(&facts.device), "", "cudaGetDevice");
  if (facts.device == 0) facts.device = device_of_local_rank(who.local_rank, facts.visible);
  cuda.require(cuda.cudaSetDevice(facts.device), "",
               fmt::format("choosing GPU {} of {}", facts.device, facts.visible));
  std::array<char, 32> bus_id{};
  cuda.require(
      cuda.cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()) - 1, facts.device),
      "", "cudaDeviceGetPCIBusId");
  facts.bus_id = bus_id.data();
  std::transform(facts.bus_id.begin(), facts.bus_id.end(), facts.bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return facts;
}

void require_one_nccl(const std::vector<GpuFacts>& all,
                      const std::function<std::string(std::size_t rank)>& name_of) {
  const GpuFacts& first = all[0];
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    check(all[rank].nccl_version == first.nccl_version,
          "{} has NCCL {} ({}), {} has NCCL {} ({}): install the same version everywhere, or name "
          "its file in PACELINE_LIBNCCL",
          name_of(0), nccl_version_text(first.nccl_version), first.nccl_path, name_of(rank),
          nccl_version_text(all[rank].nccl_version), all[rank].nccl_path);
  }
}

void require_own_gpus(const std::vector<GpuFacts>& all,
                      const std::function<std::string(std::size_t rank)>& name_of) {
  std::map<std::pair<std::string, std::string>, std::size_t> owners;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const GpuFacts& facts = all[rank];
    const auto [other, is_new] = owners.try_emplace({facts.host, facts.bus_id}, rank);
    if (is_new) continue;
    const auto ranks_there = std::count_if(
        all.begin(), all.end(), [&](const GpuFacts& theirs) { return theirs.host == facts.host; });
    check(ranks_there <= facts.visible,
          "{} and {} both have GPU {} ({}): NCCL needs a GPU for each rank, and {} share {} there; "
          "start as many ranks as there are GPUs (--nproc-per-node gpu)",
          name_of(other->second), name_of(rank), facts.device, facts.bus_id,
          counted(ranks_there, "rank"), counted(facts.visible, "GPU"));
    check(
        false,
        "{} and {} both have GPU {} ({}): NCCL needs a GPU for each rank; choose it by LOCAL_RANK "
        "(cudaSetDevice), or call cudaSetDevice in no rank, and each rank gets its own",
        name_of(other->second), name_of(rank), facts.device, facts.bus_id);
  }
}

}  // namespace paceline
