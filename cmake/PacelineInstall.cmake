# Installs the package: find_package(Paceline CONFIG) with the targets Paceline::engine, Paceline::paceline and one per room,
# and paceline-engine.pc for builds without CMake.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Paceline)
paceline_installs(${PACELINE_TARGETS})
install(TARGETS ${PACELINE_TARGETS} EXPORT PacelineTargets COMPONENT dev)
install(EXPORT PacelineTargets NAMESPACE Paceline:: DESTINATION ${package_dir} COMPONENT dev)

# Installs the public headers: those that users include, and the headers that these include in turn. Without LibTorch, only the engine's.
set(public_headers paceline/engine.h paceline/files.h paceline/launcher.h paceline/planning.h)
if(PACELINE_WITH_LIBTORCH)
  list(APPEND public_headers paceline/training.h paceline/paceline.h)
endif()
set(unread ${public_headers})
while(unread)
  list(POP_FRONT unread header)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  file(STRINGS ${header} lines REGEX "^#include \"paceline/")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
    if(NOT included IN_LIST public_headers)
      list(APPEND public_headers ${included})
      list(APPEND unread ${included})
    endif()
  endforeach()
endwhile()
foreach(header IN LISTS public_headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder} COMPONENT dev)
endforeach()

# The pages and the programs that the headers' comments name.
foreach(folder docs examples)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/paceline COMPONENT dev
      FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.cpp" PATTERN "*.h" PATTERN "*.py" PATTERN CMakeLists.txt)
  endif()
endforeach()
# Links of the pages to headers lead to the installed ones.
set(pages ${CMAKE_INSTALL_DATAROOTDIR}/doc/paceline/docs)
file(RELATIVE_PATH headers_of_pages /${pages} /${CMAKE_INSTALL_INCLUDEDIR})
install(CODE "
  file(GLOB pages \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${pages}/*.md\")
  foreach(page IN LISTS pages)
    file(READ \"\${page}\" text)
    string(REPLACE \"](../paceline/\" \"](${headers_of_pages}/paceline/\" text \"\${text}\")
    file(WRITE \"\${page}\" \"\${text}\")
  endforeach()" COMPONENT dev)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/PacelineConfig.cmake.in
  ${CMAKE_BINARY_DIR}/PacelineConfig.cmake INSTALL_DESTINATION ${package_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/PacelineConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/PacelineConfig.cmake ${CMAKE_BINARY_DIR}/PacelineConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT dev)
if(PACELINE_WITH_LIBTORCH)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/PacelineLibTorch.cmake DESTINATION ${package_dir} COMPONENT dev)
endif()

# The linker resolves symbols in static libraries from left to right, so the order is from the highest room down.
set(engine_libs "")
get_target_property(engine_modules paceline_engine INTERFACE_LINK_LIBRARIES)
foreach(module IN LISTS engine_modules)
  set(engine_libs "-l${module} ${engine_libs}")
endforeach()
set(optional_libs ${PACELINE_BACKEND_LIBRARIES} ${PACELINE_IMAGE_LIBRARIES})
list(JOIN optional_libs " " optional_libs)
# Relative, so that the tree can be installed or moved anywhere.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/paceline-engine.pc.in ${CMAKE_BINARY_DIR}/paceline-engine.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/paceline-engine.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
