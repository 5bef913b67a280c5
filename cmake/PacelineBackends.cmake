# Selects the communication libraries to which the engine is linked. Each is a folder paceline/engine/collectives/backends/NAME. If a backend
# is not built, backends/library_list.cpp gets the reason, which `paceline doctor` prints.
#
# Backend nccl is always built (sources.cmake): it loads CUDA's and NCCL's libraries when a group chooses it, and needs nothing of them here.
#
# PACELINE_WITH_<NAME>: AUTO builds the backend if its library is found, ON makes a missing library an error, OFF disables the backend.
#
# Sets PACELINE_BACKENDS (names of the backends that are built), PACELINE_BACKEND_SOURCES (relative to paceline/engine/collectives) and
# PACELINE_BACKEND_LIBRARIES (files and flags, so that the installed package needs no find module). Only the sources of a backend can
# include the headers of its library.
set(PACELINE_WITH_GLOO AUTO CACHE STRING "Backend gloo: AUTO, ON or OFF")
set(PACELINE_WITH_MPI AUTO CACHE STRING "Backend mpi: AUTO, ON or OFF")
set(PACELINE_WITH_ONECCL AUTO CACHE STRING "Backend oneccl: AUTO, ON or OFF")
set(PACELINE_MPI "" CACHE STRING "Which MPI where Debian has several: openmpi or mpich; empty: what mpicxx is")
set(PACELINE_ONECCL "" CACHE PATH "A Python environment with oneccl-devel and impi-devel, or a folder laid out alike")

set(PACELINE_BACKENDS "")
set(PACELINE_BACKEND_SOURCES backends/blocking_calls.cpp backends/connect_backend.cpp backends/library.cpp backends/library_list.cpp)
set(PACELINE_BACKEND_LIBRARIES "")

# paceline_backend(NAME missing [SOURCES ...] [INCLUDES ...] [DEFINITIONS ...]): decides whether to build one backend. `missing` is the
# reason why it cannot be built, or empty. SOURCES are those in addition to NAME_library.cpp; all sources get INCLUDES and DEFINITIONS.
function(paceline_backend name missing)
  cmake_parse_arguments(ARG "" "" "SOURCES;INCLUDES;DEFINITIONS" ${ARGN})
  list(REMOVE_ITEM ARG_INCLUDES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})  # if named again, they would hide the compiler's own headers
  string(TOUPPER ${name} upper)
  set(with ${PACELINE_WITH_${upper}})
  set_property(CACHE PACELINE_WITH_${upper} PROPERTY STRINGS AUTO ON OFF)
  if(NOT with MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "PACELINE_WITH_${upper} must be AUTO, ON or OFF, not '${with}'")
  elseif(with STREQUAL AUTO AND PACELINE_SANITIZE MATCHES "thread")
    set(missing "the thread sanitizer takes what it does not see in libraries for races")
  elseif(with STREQUAL OFF)
    set(missing "PACELINE_WITH_${upper} is OFF")
  elseif(with STREQUAL ON AND missing)
    message(FATAL_ERROR "PACELINE_WITH_${upper} is ON, but ${missing}")
  endif()
  set(folder paceline/engine/collectives/backends/${name})
  if(missing)
    message(STATUS "Backend ${name}: not built: ${missing}")
    set_property(SOURCE paceline/engine/collectives/backends/library_list.cpp APPEND PROPERTY COMPILE_DEFINITIONS
      "PACELINE_NO_${upper}=\"${missing}\"")
  else()
    message(STATUS "Backend ${name}: built")
    list(APPEND PACELINE_BACKENDS ${name})
    foreach(source ${name}_library.cpp ${ARG_SOURCES})
      list(APPEND PACELINE_BACKEND_SOURCES backends/${name}/${source})
      foreach(include IN LISTS ARG_INCLUDES)
        set_property(SOURCE ${folder}/${source} APPEND PROPERTY COMPILE_OPTIONS "-isystem${include}")
      endforeach()
      set_property(SOURCE ${folder}/${source} APPEND PROPERTY COMPILE_DEFINITIONS ${ARG_DEFINITIONS})
    endforeach()
  endif()
  set(PACELINE_BACKENDS ${PACELINE_BACKENDS} PARENT_SCOPE)
  set(PACELINE_BACKEND_SOURCES ${PACELINE_BACKEND_SOURCES} PARENT_SCOPE)
endfunction()

# ---- gloo
set(missing "")
if(NOT PACELINE_WITH_GLOO STREQUAL OFF)
  find_path(GLOO_INCLUDE_DIR gloo/rendezvous/context.h)
  find_library(GLOO_LIBRARY gloo)
  if(NOT GLOO_INCLUDE_DIR OR NOT GLOO_LIBRARY)
    set(missing "Gloo was not found")
  elseif(PACELINE_WITH_LIBTORCH AND PACELINE_LIBTORCH_WHEEL)
    # Both libraries export the namespace gloo, with different layouts: the loader would mix them.
    set(missing "the LibTorch of PyPI's wheel brings another Gloo, whose symbols would replace this one's")
  else()
    file(READ ${GLOO_INCLUDE_DIR}/gloo/rendezvous/context.h text)
    if(NOT text MATCHES "connectFullMesh\\([ \n]*Store&")
      set(missing "${GLOO_INCLUDE_DIR} has another Gloo than Debian 12's")
    endif()
  endif()
endif()
paceline_backend(gloo "${missing}" SOURCES gloo_context.cpp INCLUDES ${GLOO_INCLUDE_DIR})
if(gloo IN_LIST PACELINE_BACKENDS)
  list(APPEND PACELINE_BACKEND_LIBRARIES ${GLOO_LIBRARY})
endif()

# ---- mpi
set(missing "")
if(NOT PACELINE_WITH_MPI STREQUAL OFF)
  if(PACELINE_MPI)
    find_program(MPI_CXX_COMPILER mpicxx.${PACELINE_MPI})
    find_program(MPIEXEC_EXECUTABLE mpiexec.${PACELINE_MPI})
  endif()
  set(MPI_CXX_SKIP_MPICXX ON)  # the C++ binding, which was removed from MPI and is a separate library
  find_package(MPI COMPONENTS CXX QUIET)
  if(NOT MPI_CXX_FOUND)
    set(missing "no MPI was found")
  endif()
endif()
paceline_backend(mpi "${missing}" INCLUDES ${MPI_CXX_INCLUDE_DIRS}
  DEFINITIONS ${MPI_CXX_COMPILE_DEFINITIONS})
if(mpi IN_LIST PACELINE_BACKENDS)
  set(mpi_libraries ${MPI_CXX_LIBRARIES})
  list(FILTER mpi_libraries EXCLUDE REGEX "mpi_?cxx")
  list(APPEND PACELINE_BACKEND_LIBRARIES ${mpi_libraries})
endif()

# ---- oneccl
set(missing "")
if(NOT PACELINE_WITH_ONECCL STREQUAL OFF)
  if(NOT PACELINE_ONECCL)
    set(missing "not found: set PACELINE_ONECCL=DIR")
  elseif(NOT EXISTS ${PACELINE_ONECCL}/include/oneapi/ccl.hpp OR NOT EXISTS ${PACELINE_ONECCL}/lib/libccl.so.1)
    set(missing "${PACELINE_ONECCL} has no include/oneapi/ccl.hpp and lib/libccl.so.1")
  endif()
endif()
paceline_backend(oneccl "${missing}" INCLUDES ${PACELINE_ONECCL}/include
  DEFINITIONS PACELINE_ONECCL_PROVIDERS="${PACELINE_ONECCL}/lib")
if(oneccl IN_LIST PACELINE_BACKENDS)
  # oneCCL's libraries find each other only through DT_RPATH, which also applies to libraries that the program loads.
  list(APPEND PACELINE_BACKEND_LIBRARIES ${PACELINE_ONECCL}/lib/libccl.so.1
    -Wl,--disable-new-dtags,-rpath,${PACELINE_ONECCL}/lib,-rpath-link,${PACELINE_ONECCL}/lib)
endif()
