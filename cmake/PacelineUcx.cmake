# Decides whether the transport over UCX is built: paceline/engine/transport/ucx, or ucx/no_ucx.cpp with the reason that `paceline doctor`
# prints. Only UCX's headers are needed; its library is loaded when the transport is selected.
#
# PACELINE_WITH_UCX: AUTO builds the transport if UCX is found, ON makes a missing UCX an error, OFF disables it.
#
# Sets PACELINE_UCX_SOURCES (relative to paceline/engine/transport); the target paceline_ucx has the includes.
set(PACELINE_WITH_UCX AUTO CACHE STRING "Transport ucx: AUTO, ON or OFF")
set_property(CACHE PACELINE_WITH_UCX PROPERTY STRINGS AUTO ON OFF)

add_library(paceline_ucx INTERFACE)
set(missing "")
if(NOT PACELINE_WITH_UCX MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "PACELINE_WITH_UCX must be AUTO, ON or OFF, not '${PACELINE_WITH_UCX}'")
elseif(PACELINE_WITH_UCX STREQUAL OFF)
  set(missing "PACELINE_WITH_UCX is OFF")
else()
  find_path(UCX_INCLUDE_DIR ucp/api/ucp.h)
  if(NOT UCX_INCLUDE_DIR)
    set(missing "UCX's headers were not found")
  endif()
endif()
if(missing AND PACELINE_WITH_UCX STREQUAL ON)
  message(FATAL_ERROR "PACELINE_WITH_UCX is ON, but ${missing}")
elseif(missing)
  message(STATUS "Transport ucx: not built: ${missing}")
  set(PACELINE_UCX_SOURCES ucx/no_ucx.cpp)
  set_property(SOURCE paceline/engine/transport/ucx/no_ucx.cpp APPEND PROPERTY COMPILE_DEFINITIONS "PACELINE_NO_UCX=\"${missing}\"")
else()
  message(STATUS "Transport ucx: built")
  set(PACELINE_UCX_SOURCES ucx/ucx.cpp ucx/worker.cpp)
  target_include_directories(paceline_ucx SYSTEM INTERFACE ${UCX_INCLUDE_DIR})
endif()
