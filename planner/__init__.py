"""The questions and the physics: what is asked, what it costs, the program it becomes, the checked answer.

Nothing is imported here, so that `import planner.request` stays light; the front door is `planner.plan`.
"""
