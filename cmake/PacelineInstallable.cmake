# paceline_installable: the target that builds what is installed, which is less than everything. `cmake --install` builds it where
# something of it is missing, as after a build of a few targets only.
add_custom_target(paceline_installable)

# paceline_installs(TARGET...): these are installed, and therefore built by paceline_installable.
function(paceline_installs)
  add_dependencies(paceline_installable ${ARGN})
  foreach(target IN LISTS ARGN)
    get_target_property(type ${target} TYPE)
    if(NOT type STREQUAL INTERFACE_LIBRARY)
      set_property(TARGET paceline_installable APPEND PROPERTY PACELINE_FILES $<TARGET_FILE:${target}>)
    endif()
  endforeach()
endfunction()

# Comes before all other rules of installation, so it runs first. A project around this one builds everything itself.
if(PROJECT_IS_TOP_LEVEL)
  install(CODE "
    foreach(file IN ITEMS $<TARGET_GENEX_EVAL:paceline_installable,$<TARGET_PROPERTY:paceline_installable,PACELINE_FILES>>)
      if(NOT EXISTS \"\${file}\")
        message(STATUS \"Building what is installed and was not built yet\")
        execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${CMAKE_BINARY_DIR}\" --config \"\${CMAKE_INSTALL_CONFIG_NAME}\"
          --target paceline_installable COMMAND_ERROR_IS_FATAL ANY)
        break()
      endif()
    endforeach()" ALL_COMPONENTS)
endif()
