#include <cstring>
#include <set>

#include "paceline/engine/core/check.h"
#include "paceline/engine/transport/ucx/api.h"
#include "paceline/engine/transport/ucx/ucx.h"
#include "paceline/engine/transport/ucx/ucx_wire.h"

namespace paceline {
namespace {

using ucx::Api;

constexpr const char* kAdvice = "apt install libucx0";

// True for InfiniBand and RoCE; UCX's other network transport is TCP.
bool is_rdma(const uct_tl_resource_desc_t& resource) {
  return resource.dev_type == UCT_DEVICE_TYPE_NET && std::strcmp(resource.tl_name, "tcp") != 0;
}

void add_devices(const Api& api, uct_component_h component, const char* memory_domain,
                 std::set<std::string>& devices) {
  uct_md_config_t* config = nullptr;
  if (api.uct_md_config_read(component, nullptr, nullptr, &config) != UCS_OK) return;
  uct_md_h domain = nullptr;
  const ucs_status_t status = api.uct_md_open(component, memory_domain, config, &domain);
  api.uct_config_release(config);
  if (status != UCS_OK) return;
  uct_tl_resource_desc_t* resources = nullptr;
  unsigned count = 0;
  if (api.uct_md_query_tl_resources(domain, &resources, &count) == UCS_OK) {
    for (unsigned i = 0; i < count; ++i) {
      if (is_rdma(resources[i])) devices.insert(resources[i].dev_name);
    }
    api.uct_release_tl_resource_list(resources);
  }
  api.uct_md_close(domain);
}

std::vector<std::string> find_rdma_devices(const Api& api) {
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (api.uct_query_components(&components, &count) != UCS_OK) return {};
  std::set<std::string> devices;
  for (unsigned i = 0; i < count; ++i) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    if (api.uct_component_query(components[i], &attributes) != UCS_OK) continue;
    std::vector<uct_md_resource_desc_t> domains(attributes.md_resource_count);
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attributes.md_resources = domains.data();
    if (api.uct_component_query(components[i], &attributes) != UCS_OK) continue;
    for (const auto& domain : domains) add_devices(api, components[i], domain.md_name, devices);
  }
  api.uct_release_component_list(components);
  return {devices.begin(), devices.end()};
}

}  // namespace

UcxInfo ucx_info() {
  std::string why;
  const Api* const api = Api::load(&why);
  if (api == nullptr) return {.text = why, .advice = kAdvice, .rdma_devices = {}};
  return {.available = true,
          .text = fmt::format("UCX {}", api->ucp_get_version_string()),
          .advice = "",
          .rdma_devices = find_rdma_devices(*api)};
}

std::unique_ptr<Wire> over_ucx(std::unique_ptr<SocketWire>& sockets, const std::vector<int>& remote,
                               const DescribeRank& describe, Deadline deadline) {
  std::string why;
  const Api* const api = Api::load(&why);
  if (api == nullptr) {
    fail(ErrorCode::kUnsupported, "transport ucx is not available: {}; to get it: {}", why,
         kAdvice);
  }
  auto wire = std::make_unique<ucx::UcxWire>(*api, *sockets, remote, describe, deadline);
  wire->own(std::move(sockets));
  return wire;
}

}  // namespace paceline
