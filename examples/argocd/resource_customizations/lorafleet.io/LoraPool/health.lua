-- The health of a LoraPool for Argo CD. A pool that answers but lost a replica is on its way back to what was asked for.
local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration == nil then
  return {status = "Progressing", message = "The operator has not looked at it yet"}
end
if obj.metadata.generation ~= nil and status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "The operator has not looked at this generation yet"}
end

local found = {}
for _, condition in ipairs(status.conditions) do
  found[condition.type] = condition
end

local function told(condition)
  if condition.message ~= nil and condition.message ~= "" then
    return condition.message
  end
  return condition.reason
end

local ready, reconciling, stalled = found["Ready"], found["Reconciling"], found["Stalled"]
if stalled ~= nil and stalled.status == "True" then
  return {status = "Degraded", message = told(stalled)}
end
if reconciling ~= nil and reconciling.status == "True" then
  return {status = "Progressing", message = told(reconciling)}
end
if ready ~= nil and ready.status == "True" then
  return {status = "Healthy", message = told(ready)}
end
return {status = "Progressing", message = "The operator has not said whether it is ready"}
