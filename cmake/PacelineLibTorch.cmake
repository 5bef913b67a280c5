# Defines the target paceline_libtorch: Debian's libtorch-dev, a LibTorch found through CMAKE_PREFIX_PATH, or a PyPI wheel given by
# -DPACELINE_LIBTORCH_WHEEL=<site-packages>/torch. If none is found, PACELINE_LIBTORCH_MISSING explains what to do.
#
# The wheel on PyPI is a CUDA build whose TorchConfig.cmake requires a CUDA toolkit. On a machine without one, torch_cpu and c10
# are linked directly; libtorch_cpu.so then needs only libcudart and libcupti, which are in the wheels nvidia-cuda-runtime and
# nvidia-cuda-cupti.
set(PACELINE_LIBTORCH_WHEEL "" CACHE PATH "The torch folder of an installed PyPI wheel, used instead of find_package(Torch)")
if(NOT PACELINE_LIBTORCH_WHEEL)
  find_package(Torch QUIET)
  if(NOT Torch_FOUND)
    set(PACELINE_LIBTORCH_MISSING "LibTorch was not found: install Debian's libtorch-dev, or set CMAKE_PREFIX_PATH to the folder of \
another LibTorch")
    return()
  endif()
endif()
add_library(paceline_libtorch INTERFACE)
if(PACELINE_LIBTORCH_WHEEL)
  set(wheel ${PACELINE_LIBTORCH_WHEEL})
  if(NOT EXISTS ${wheel}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "PACELINE_LIBTORCH_WHEEL=${wheel} has no lib/libtorch_cpu.so")
  endif()
  file(GLOB cuda_folders ${wheel}/../nvidia/*/lib ${wheel}/../nvidia/*/*/lib)
  set(rpath ${wheel}/lib ${cuda_folders})
  target_include_directories(paceline_libtorch SYSTEM INTERFACE
    ${wheel}/include ${wheel}/include/torch/csrc/api/include)
  target_link_libraries(paceline_libtorch INTERFACE ${wheel}/lib/libtorch_cpu.so ${wheel}/lib/libc10.so)
  foreach(folder IN LISTS rpath)
    target_link_options(paceline_libtorch INTERFACE -Wl,-rpath,${folder} -Wl,-rpath-link,${folder})
  endforeach()
  # The wheel contains headers of an fmt that is newer than the system's library, so fmt's code must be inline (header-only).
  if(EXISTS ${wheel}/include/fmt/format.h)
    target_compile_definitions(paceline_libtorch INTERFACE FMT_HEADER_ONLY)
  endif()
  file(STRINGS ${wheel}/version.py version_line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+[0-9.]*" PACELINE_LIBTORCH_VERSION "${version_line}")
else()
  target_include_directories(paceline_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  target_link_libraries(paceline_libtorch INTERFACE ${TORCH_LIBRARIES})
  set(PACELINE_LIBTORCH_VERSION ${Torch_VERSION})
endif()
message(STATUS "LibTorch ${PACELINE_LIBTORCH_VERSION}")
if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND PACELINE_LIBTORCH_VERSION VERSION_LESS 2)
  message(FATAL_ERROR "Clang does not accept the headers of LibTorch ${PACELINE_LIBTORCH_VERSION} as C++20; use GCC, or a LibTorch \
from 2.0 on (scripts/test --preset clang --libtorch pypi)")
endif()
