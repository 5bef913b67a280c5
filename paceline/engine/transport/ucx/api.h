#pragma once

// UCX's functions. The library is loaded when they are first needed, because linking it would bring
// its signal handlers into every program.

#include <string>

#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

namespace paceline::ucx {

// Each function with the library that defines it: libucp, libucs or libuct.
// clang-format off
#define PACELINE_UCX_FUNCTIONS(FUNCTION) \
  FUNCTION(ucp, ucp_get_version_string) FUNCTION(ucp, ucp_config_read) \
  FUNCTION(ucp, ucp_config_release) FUNCTION(ucp, ucp_init_version) FUNCTION(ucp, ucp_cleanup) \
  FUNCTION(ucp, ucp_worker_create) FUNCTION(ucp, ucp_worker_destroy) \
  FUNCTION(ucp, ucp_worker_progress) FUNCTION(ucp, ucp_worker_get_efd) \
  FUNCTION(ucp, ucp_worker_arm) FUNCTION(ucp, ucp_worker_get_address) \
  FUNCTION(ucp, ucp_worker_release_address) FUNCTION(ucp, ucp_ep_create) \
  FUNCTION(ucp, ucp_ep_close_nbx) FUNCTION(ucp, ucp_stream_send_nbx) \
  FUNCTION(ucp, ucp_stream_recv_data_nb) FUNCTION(ucp, ucp_stream_data_release) \
  FUNCTION(ucp, ucp_request_check_status) FUNCTION(ucp, ucp_request_free) \
  FUNCTION(ucs, ucs_status_string) FUNCTION(uct, uct_query_components) \
  FUNCTION(uct, uct_release_component_list) FUNCTION(uct, uct_component_query) \
  FUNCTION(uct, uct_md_config_read) FUNCTION(uct, uct_config_release) \
  FUNCTION(uct, uct_md_open) FUNCTION(uct, uct_md_close) \
  FUNCTION(uct, uct_md_query_tl_resources) FUNCTION(uct, uct_release_tl_resource_list)
// clang-format on

struct Api {
  // Loads the library once, and keeps it. Returns null and sets `why` if it is not available.
  static const Api* load(std::string* why);

// NOLINTNEXTLINE(bugprone-macro-parentheses): the macro declares the name
#define PACELINE_UCX_FUNCTION(library, name) decltype(&::name) name = nullptr;
  PACELINE_UCX_FUNCTIONS(PACELINE_UCX_FUNCTION)
#undef PACELINE_UCX_FUNCTION
};

}  // namespace paceline::ucx
