# paceline_installable: the target that builds all installed files, but not tests and benchmarks. `cmake --install` builds it if files are
# missing, for instance after a build of only a few targets.
add_custom_target(paceline_installable)

# paceline_installs(TARGET...): these targets are installed, so paceline_installable builds them.
function(paceline_installs)
  add_dependencies(paceline_installable ${ARGN})
  foreach(target IN LISTS ARGN)
    get_target_property(type ${target} TYPE)
    if(NOT type STREQUAL INTERFACE_LIBRARY)
      set_property(TARGET paceline_installable APPEND PROPERTY PACELINE_FILES $<TARGET_FILE:${target}>)
    endif()
  endforeach()
endfunction()

# This rule is before all other installation rules, so it runs first. If Paceline is part of another project, that project builds all targets.
if(PROJECT_IS_TOP_LEVEL)
  install(CODE "
    foreach(file IN ITEMS $<TARGET_GENEX_EVAL:paceline_installable,$<TARGET_PROPERTY:paceline_installable,PACELINE_FILES>>)
      if(NOT EXISTS \"\${file}\")
        message(STATUS \"Building the installed files that were not built yet\")
        execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${CMAKE_BINARY_DIR}\" --config \"\${CMAKE_INSTALL_CONFIG_NAME}\"
          --target paceline_installable COMMAND_ERROR_IS_FATAL ANY)
        break()
      endif()
    endforeach()" ALL_COMPONENTS)
endif()
