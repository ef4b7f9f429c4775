-- A paused view has its epoch too.

COMMENT ON COLUMN tidemark.views.epoch IS 'the epoch in which the view became live, or was paused';
