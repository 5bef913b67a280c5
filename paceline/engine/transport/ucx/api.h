#pragma once

// UCX's functions, from the library that is loaded when they are first asked for. Linking it would
// bring its signal handlers into every program.

#include <string>

#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

namespace paceline::ucx {

struct Api {
  // Null, with `why` set, when there is no such library. Loaded once, and kept.
  static const Api* load(std::string* why);

// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares the name
#define PACELINE_UCX_FUNCTION(name) decltype(&::name) name = nullptr
  PACELINE_UCX_FUNCTION(ucp_get_version_string);
  PACELINE_UCX_FUNCTION(ucp_config_read);
  PACELINE_UCX_FUNCTION(ucp_config_release);
  PACELINE_UCX_FUNCTION(ucp_init_version);
  PACELINE_UCX_FUNCTION(ucp_cleanup);
  PACELINE_UCX_FUNCTION(ucp_worker_create);
  PACELINE_UCX_FUNCTION(ucp_worker_destroy);
  PACELINE_UCX_FUNCTION(ucp_worker_progress);
  PACELINE_UCX_FUNCTION(ucp_worker_get_efd);
  PACELINE_UCX_FUNCTION(ucp_worker_arm);
  PACELINE_UCX_FUNCTION(ucp_worker_get_address);
  PACELINE_UCX_FUNCTION(ucp_worker_release_address);
  PACELINE_UCX_FUNCTION(ucp_ep_create);
  PACELINE_UCX_FUNCTION(ucp_ep_close_nbx);
  PACELINE_UCX_FUNCTION(ucp_stream_send_nbx);
  PACELINE_UCX_FUNCTION(ucp_stream_recv_data_nb);
  PACELINE_UCX_FUNCTION(ucp_stream_data_release);
  PACELINE_UCX_FUNCTION(ucp_request_check_status);
  PACELINE_UCX_FUNCTION(ucp_request_free);
  PACELINE_UCX_FUNCTION(ucs_status_string);
  PACELINE_UCX_FUNCTION(uct_query_components);
  PACELINE_UCX_FUNCTION(uct_release_component_list);
  PACELINE_UCX_FUNCTION(uct_component_query);
  PACELINE_UCX_FUNCTION(uct_md_config_read);
  PACELINE_UCX_FUNCTION(uct_config_release);
  PACELINE_UCX_FUNCTION(uct_md_open);
  PACELINE_UCX_FUNCTION(uct_md_close);
  PACELINE_UCX_FUNCTION(uct_md_query_tl_resources);
  PACELINE_UCX_FUNCTION(uct_release_tl_resource_list);
#undef PACELINE_UCX_FUNCTION
};

}  // namespace paceline::ucx
