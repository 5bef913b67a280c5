# Settings for two Debian packages, which `cpack` makes in the build folder (scripts/make_deb runs all steps): paceline has the command,
# which needs no LibTorch; libpaceline-dev has headers, static libraries, and the files for CMake and pkg-config. dpkg-shlibdeps finds the
# libraries that the command needs at run time; those that programs link with the static libraries are listed here.
set(PACELINE_PACKAGE_CONTACT "Paceline developers <paceline@packages.invalid>" CACHE STRING "Maintainer of the packages")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME paceline)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training for C++")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT ${PACELINE_PACKAGE_CONTACT})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL runtime dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME paceline)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "libucx0, openssh-client, libpaceline-dev")
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "The command paceline starts a program as several ranks on one machine or on
many, divides the cores among them, keeps their logs, explains failures and
hangs, and measures collectives. It runs any program, in C++ or not.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libpaceline-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(dev_depends libfmt-dev libspdlog-dev nlohmann-json3-dev libsodium-dev libhwloc-dev libxxhash-dev libutf8proc-dev zlib1g-dev pkg-config)
if(PACELINE_HAS_IMAGES)
  list(APPEND dev_depends libjpeg62-turbo-dev libpng-dev)
endif()
if(gloo IN_LIST PACELINE_BACKENDS)
  list(APPEND dev_depends libgloo-dev)
endif()
if(mpi IN_LIST PACELINE_BACKENDS)
  list(APPEND dev_depends "libopenmpi-dev | libmpich-dev")
endif()
list(JOIN dev_depends ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS "paceline (= ${PROJECT_VERSION})")
set(dev_half "headers and static libraries of the engine: process groups, collectives,
rendezvous, checkpoints; for programs without LibTorch.")
if(PACELINE_WITH_LIBTORCH AND NOT PACELINE_LIBTORCH_WHEEL)
  string(APPEND CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS ", libtorch-dev, libopenblas0-pthread")
  set(dev_half "headers and static libraries of the engine, for programs without LibTorch,
and of what stands on LibTorch ${PACELINE_LIBTORCH_VERSION}: DistributedDataParallel, samplers,
loaders, optimizers.")
endif()
set(CPACK_DEBIAN_DEV_DESCRIPTION "This package has ${dev_half}
.
CMake: find_package(Paceline); pkg-config: paceline-engine.")

# As Debian's policy requires, each package has its licence and its list of changes. The manual pages: PacelineManPages.cmake.
string(TIMESTAMP PACKAGE_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
find_program(GZIP_PROGRAM gzip REQUIRED)
configure_file(${CMAKE_CURRENT_LIST_DIR}/package/changelog.in ${CMAKE_BINARY_DIR}/package/changelog @ONLY)
execute_process(COMMAND ${GZIP_PROGRAM} -9nf ${CMAKE_BINARY_DIR}/package/changelog COMMAND_ERROR_IS_FATAL ANY)
foreach(component IN ITEMS runtime:paceline dev:libpaceline-dev)
  string(REGEX MATCH "^(.*):(.*)$" matched ${component})
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/package/copyright ${CMAKE_BINARY_DIR}/package/changelog.gz
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${CMAKE_MATCH_2} COMPONENT ${CMAKE_MATCH_1})
endforeach()
include(CPack)
