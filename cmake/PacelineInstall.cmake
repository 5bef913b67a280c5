# The installable package: find_package(Paceline CONFIG) with the targets Paceline::engine, Paceline::paceline and one per module,
# and paceline-engine.pc for builds without CMake.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Paceline)
install(TARGETS ${PACELINE_TARGETS} EXPORT PacelineTargets COMPONENT dev)
install(EXPORT PacelineTargets NAMESPACE Paceline:: DESTINATION ${package_dir} COMPONENT dev)
install(DIRECTORY paceline DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev FILES_MATCHING PATTERN "*.h")

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/PacelineConfig.cmake.in
  ${CMAKE_BINARY_DIR}/PacelineConfig.cmake INSTALL_DESTINATION ${package_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/PacelineConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/PacelineConfig.cmake ${CMAKE_BINARY_DIR}/PacelineConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT dev)
if(PACELINE_WITH_LIBTORCH)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/PacelineLibTorch.cmake DESTINATION ${package_dir} COMPONENT dev)
endif()

# Static libraries: the linker takes what it needs from each, so the order is from the highest module down.
set(engine_libs "")
get_target_property(engine_modules paceline_engine INTERFACE_LINK_LIBRARIES)
foreach(module IN LISTS engine_modules)
  set(engine_libs "-l${module} ${engine_libs}")
endforeach()
list(JOIN PACELINE_BACKEND_LIBRARIES " " backend_libs)
# Relative, so that the tree can be installed or moved anywhere.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/paceline-engine.pc.in ${CMAKE_BINARY_DIR}/paceline-engine.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/paceline-engine.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
